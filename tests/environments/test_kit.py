"""The test kit: it passes what is right, and says of each broken promise which one it is."""

import asyncio
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from environments import registry
from environments.env import Environment, NoArgs, last_reply
from environments.kit import Report, check, hostile_replies, played
from environments.types import Message, PlayedRollout, Problem, Split, StopReason

ROOT = Path(__file__).parents[2]

NEEDS_DATA = {"choices", "dataset", "gsm8k", "math"}
"""They have no problems without a data set; those of their own tests are checked there."""
OPTIONS: dict[str, dict[str, Any]] = {}
"""By name: arguments of `check`, and as `args` those of the environment."""
ASKS_OTHERS = {name for name in registry.names() if registry.policies_of(name, {})}
"""What is checked where somebody answers it: `tests/environments/judging/`."""
BUILT_IN = sorted(set(filter(registry.is_built_in, registry.names())) - set(NEEDS_DATA) - ASKS_OTHERS)


class Doubling(Environment[NoArgs]):
    """Double a number; keeps every promise."""

    name = "doubling"

    def __init__(self, args: NoArgs | None = None) -> None:
        super().__init__(args or NoArgs())

    def count(self, split: Split) -> int:
        return 40

    def problem(self, split: Split, index: int) -> Problem:
        number = 1_000 + 2 * index + (split is Split.EVAL)
        return Problem(key=str(number), messages=[Message("user", f"2 * {number}")], data={"answer": str(2 * number)})

    def reward(self, problem: Problem, rollout: PlayedRollout) -> float:
        return float(last_reply(rollout) == problem.data["answer"])

    def solution(self, problem: Problem) -> list[Message] | None:
        return [*problem.messages, Message("assistant", problem.data["answer"])]


class Forgetful(Doubling):
    counter = itertools.count()

    def problem(self, split: Split, index: int) -> Problem:
        return super().problem(split, index + next(self.counter))


class OfItsProcess(Doubling):
    def problem(self, split: Split, index: int) -> Problem:
        return super().problem(split, index + 1_000 * os.getpid())


class OneKey(Doubling):
    def problem(self, split: Split, index: int) -> Problem:
        found = super().problem(split, index)
        return Problem(key="key", messages=found.messages, data=found.data)


class LongKey(Doubling):
    def problem(self, split: Split, index: int) -> Problem:
        found = super().problem(split, index)
        return Problem(key=found.key * 60, messages=found.messages, data=found.data)


class OneSplit(Doubling):
    def problem(self, split: Split, index: int) -> Problem:
        return super().problem(Split.TRAIN, index)


class OneSplitByAnotherName(Doubling):
    def problem(self, split: Split, index: int) -> Problem:
        found = super().problem(Split.TRAIN, index)
        return Problem(key=f"{split}/{found.key}", messages=found.messages, data=found.data | {"split": split.value})


class Telling(Doubling):
    def problem(self, split: Split, index: int) -> Problem:
        found = super().problem(split, index)
        told = Message("system", f"Say {found.data['answer']}.")
        return Problem(key=found.key, messages=[told, *found.messages], data=found.data)


class NoJson(Doubling):
    def problem(self, split: Split, index: int) -> Problem:
        found = super().problem(split, index)
        return Problem(key=found.key, messages=found.messages, data=found.data | {"by_number": {1: 2}})


class Unsendable(Doubling):
    def problem(self, split: Split, index: int) -> Problem:
        found = super().problem(split, index)
        return Problem(key=found.key, messages=found.messages, data=found.data | {"a": 2**70})


class Comparing(Doubling):
    """Its scoring fails once a tuple has become a list."""

    def problem(self, split: Split, index: int) -> Problem:
        found = super().problem(split, index)
        return Problem(key=found.key, messages=found.messages, data={"answers": (found.data["answer"],)})

    def reward(self, problem: Problem, rollout: PlayedRollout) -> float:
        return float((last_reply(rollout),) == problem.data["answers"])

    def solution(self, problem: Problem) -> list[Message] | None:
        return [*problem.messages, Message("assistant", problem.data["answers"][0])]


class Generous(Doubling):
    def reward(self, problem: Problem, rollout: PlayedRollout) -> float:
        return 1.0


class Infinite(Doubling):
    def reward(self, problem: Problem, rollout: PlayedRollout) -> float:
        rollout.metrics["share"] = float("inf")
        return super().reward(problem, rollout)


class Fragile(Doubling):
    def reward(self, problem: Problem, rollout: PlayedRollout) -> float:
        reply = last_reply(rollout)
        return float(reply.isdecimal() and int(reply) == int(problem.data["answer"]))


class ReadsThoughts(Doubling):
    def reward(self, problem: Problem, rollout: PlayedRollout) -> float:
        return float(problem.data["answer"] in last_reply(rollout))


class GoesOn(Doubling):
    async def step(self, state: Any, reply: Message) -> list[Message] | None:
        return [Message("user", "again")]


class SaysAnother(Doubling):
    def solution(self, problem: Problem) -> list[Message] | None:
        return [Message("user", "Double it."), Message("assistant", problem.data["answer"])]


class Unsolved(Doubling):
    def solution(self, problem: Problem) -> list[Message] | None:
        return None


def failing(report: Report) -> list[str]:
    return [finding.sentence for finding in report.findings if not finding.holds]


@pytest.mark.slow  # a second for each, most of it for a fresh process and for megabytes
@pytest.mark.parametrize(
    ("environment", "sentences"),
    [
        (Forgetful, ["Problems differ when asked for again"]),
        (OfItsProcess, ["Problems of a fresh process (1 such): are others"]),
        (OneKey, ["Keys have 1 to 200 printable characters and are of one problem each (1 such): 'key' is of 80"]),
        (LongKey, ["Keys have 1 to 200 printable characters"]),
        (OneSplit, ["Held-out problems are trained on (40 such): 1000; 1002; 1004"]),
        (OneSplitByAnotherName, ["Held-out problems are trained on (40 such)"]),
        (Telling, ["The messages show what scoring knows (1 such): data['answer']"]),
        (NoJson, ["Problems have to be JSON (8 such): 1000 comes back another one"]),
        (Unsendable, ["Problems have to be JSON (8 such): 1000: can't serialize ints"]),
        (Comparing, ["Solving does not pay (1 such): the solving player earns 0.000"]),
        (Generous, ["Solving does not pay", "Hostile replies pay (1.000 at best"]),
        (Infinite, ["Episodes fail (8 such): reward: RewardError: Metric 'share' is inf", "Solving does not pay"]),
        (Fragile, ["Hostile replies break episodes"]),
        (ReadsThoughts, ["Hostile replies pay (1.000 at best"]),
        (GoesOn, ["Solutions are not what is played (4 such): 1000: the episode goes on where the solution is over"]),
        (SaysAnother, ["Solutions are not what is played (4 such): 1000: the user says '2 * 1000' where"]),
    ],
)
def test_a_broken_promise_is_told(environment: type[Doubling], sentences: list[str]) -> None:
    report = check(environment(), problems=4)
    found = failing(report)
    for sentence in sentences:
        assert [each for each in found if each.startswith(sentence)], str(report)
    assert not report.holds


def test_what_keeps_its_promises_passes_with_the_rewards_of_both_players() -> None:
    report = check(Doubling(), problems=10)
    assert report.holds, str(report)
    assert (report.random_reward, report.solving_reward, report.hostile_best) == (0.0, 1.0, 0.0)
    assert "Solving pays: the solving player earns 1.000, the random one 0.000." in str(report)


def test_without_solutions_nothing_is_compared_but_nonsense_is_tried_all_the_same() -> None:
    report = check(Unsolved(), problems=4)
    assert report.holds, str(report)
    assert report.solving_reward is None
    assert "solution() gives nothing to compare it with" in str(report)


def test_what_takes_longer_than_allowed_is_told() -> None:
    report = check(Doubling(), problems=4, seconds=0)
    assert [sentence for sentence in failing(report) if sentence.startswith("Hostile replies take too long")]


def test_a_random_player_of_ones_own_takes_the_place_of_the_usual_one() -> None:
    report = check(
        Doubling(), problems=4, random_player=lambda problem, _: [Message("assistant", problem.data["answer"])]
    )
    assert report.random_reward == 1.0
    assert [sentence for sentence in failing(report) if sentence.startswith("Solving does not pay")]


def test_replies_go_round_until_the_episode_is_over() -> None:
    environment = GoesOn()
    rollout = asyncio.run(played(environment, environment.problem(Split.TRAIN, 0), ["a", "b"], max_turns=3))
    assert [message.text for message in rollout.messages if message.role == "assistant"] == ["a", "b", "a"]
    assert rollout.stop_reason is StopReason.TURNS


def test_hostile_replies_use_the_tags_of_the_solution_and_the_tools_of_the_problem() -> None:
    calculator = registry.load("calculator").problem(Split.TRAIN, 0)
    replies = hostile_replies(calculator, [Message("assistant", "<guess>crane</guess>")])
    assert max(len(reply.text) for reply in replies.values()) >= 2**20
    assert "<guess>" in {name.split(" ")[0] for name in replies}
    assert {call.function.name for reply in replies.values() for call in reply.tool_calls} == {"add", "__import__"}
    assert replies["the answer as reasoning"].reasoning_content == "<guess>crane</guess>"


@pytest.mark.slow  # some seconds for each
@pytest.mark.parametrize("name", BUILT_IN)
def test_every_environment_of_ours_keeps_its_promises(name: str) -> None:
    """A new one whose arguments have no defaults, or whose tools take long, has its entry in OPTIONS."""
    options = {"problems": 20} | OPTIONS.get(name, {})
    report = check(registry.load(name, options.pop("args", None)), **options)
    assert report.holds, str(report)


@pytest.mark.slow  # starts interpreters
@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["calculator", "--args", '{"max_digits": 6}', "--problems", "5"], 0, "holds  Solving pays"),
        (["calculator", "--problems", "5", "--seconds", "0"], 1, "FAILS  Hostile replies take too long"),
        (["no_such"], 2, "No environment is named 'no_such'"),
    ],
)
def test_the_command_says_what_holds_and_its_status_whether_all_does(
    arguments: list[str], status: int, words: str
) -> None:
    command = [sys.executable, "-m", "environments", "check", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, words in done.stdout + done.stderr) == (status, True), done.stdout + done.stderr


@pytest.mark.slow  # starts an interpreter
def test_a_check_that_hangs_ends_at_its_deadline_and_shows_where() -> None:
    command = [sys.executable, "-m", "environments", "check", "wordle", "--problems", "900", "--deadline", "0.2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "Timeout" in done.stderr
