"""python: a program finds the answer, in a sandbox, and the policy says it."""

import asyncio
import json
import time
from typing import Any

import pytest

from environments import registry
from environments.env import Environment
from environments.sandbox import tools
from environments.sandbox.call import SandboxCall, SandboxResult
from environments.sandbox.tools import SandboxUnavailable
from environments.solutions import solved
from environments.types import FinishedRollout, Message, Split
from tests.environments.library_tools.playing import (
    CALL,
    CallingByLine,
    check_splits,
    hostile,
    played,
    reward_of_solution,
    rollout_of,
)
from tests.environments.rewards.replying import NO_LOOP_S
from tests.environments.sandbox.programs import needs_sandbox

pytestmark = pytest.mark.slow  # most start a sandbox


def python(**args: object) -> Environment[Any]:
    return registry.load("python", args)


def running(code: str) -> str:
    return f"{CALL}python {json.dumps({'code': code})}"


def told(rollout: Any) -> list[str]:
    return [message.text for message in rollout.messages if message.role == "tool"]


def test_problems_are_the_same_every_time_and_splits_share_none() -> None:
    check_splits("python", {}, 150)


def test_every_family_has_an_answer_and_few_are_alike() -> None:
    names: dict[str, set[str]] = {}
    for level in (1, 2, 3):
        environment = python(min_level=level, max_level=level)
        for index in range(40):
            problem = environment.problem(Split.TRAIN, index)
            assert "$" not in problem.messages[1].text
            assert int(problem.data["answer"]) >= 0
            names.setdefault(problem.key.partition("-")[0], set()).add(problem.data["answer"])
    assert len(names) == 15
    assert all(len(answers) > 3 for answers in names.values())


def test_its_own_solutions_earn_the_full_reward_and_call_the_tool() -> None:
    environment = python()
    for index in range(40):
        assert reward_of_solution(environment, environment.problem(Split.EVAL, index)) == 1.0
    assert all(line["tools"][0]["function"]["name"] == "python" for line in solved("python", {}, 3))


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize("level", [1, 2, 3])
def test_its_own_programs_print_the_answer_in_the_sandbox(level: int) -> None:
    environment = python(min_level=level, max_level=level)
    for index in range(8):
        problem = environment.problem(Split.EVAL, index)
        answer = problem.data["answer"]
        rollout = played(environment, problem, running(problem.data["program"]), f"<answer>{answer}</answer>")
        assert (rollout.reward, told(rollout)) == (1.0, [answer])


PROBLEM = python().problem(Split.TRAIN, 0)
RIGHT = PROBLEM.data["answer"]


@needs_sandbox
@pytest.mark.parametrize(
    ("replies", "reward"),
    [
        ((running(f"print({RIGHT})"), f"<answer>{RIGHT}</answer>"), 1.0),
        ((running("1 / 0"), running("print(1)"), f"It is <answer> {RIGHT} </answer>."), 1.0),
        ((running(f"print('it is', {RIGHT})"), "<answer>no</answer>"), 0.3),
        ((running(f"print('it is', {RIGHT})"), f"It is {RIGHT}."), 0.3),
        ((running(f"print({RIGHT}, 'or', 3)"), "<answer>no</answer>"), 0.1),
        ((running("pass"), "<answer>7</answer>"), 0.1),
        ((running(f"print({RIGHT})"), f"<think><answer>{RIGHT}</answer></think>"), 0.3),
        ((running("1 / 0"), f"<answer>{RIGHT}</answer>"), 0.0),
        ((f"{CALL}python {{", f"<answer>{RIGHT}</answer>"), 0.0),
        ((f'{CALL}perl {{"code": "1"}}', f"<answer>{RIGHT}</answer>"), 0.0),
        ((f"<answer>{RIGHT}</answer>",), 0.0),
        (("",), 0.0),
    ],
)
def test_rewards(replies: tuple[str, ...], reward: float) -> None:
    rollout = played(python(), PROBLEM, *replies)
    assert rollout.reward == reward
    assert rollout.metrics["right"] == float(reward == 1.0 or (reward == 0.0 and RIGHT in replies[-1]))


@needs_sandbox
def test_the_tool_says_what_a_program_printed_or_what_is_wrong_with_it() -> None:
    programs = ["print(1)\nprint('é')", "pass", "1 / 0", "while True: pass", "print('x' * 50_000)", "kept = 1", "kept"]
    replies = [running(program) for program in programs]
    rollout = played(python(max_calls=9, call_s=1), PROBLEM, *replies, "done")
    printed, nothing, failed, endless, long, _, forgotten = told(rollout)
    assert printed == "1\né"
    assert nothing == "(it printed nothing)"
    assert failed.startswith("error: ")
    assert "ZeroDivisionError" in failed
    assert endless.startswith(("error: it was ended at its limit of wall", "error: it was ended at its limit of cpu"))
    assert long == "x" * 2_000 + "\n(and more)"
    assert "NameError" in forgotten  # nothing is kept between calls


@needs_sandbox
def test_calls_beyond_the_last_are_not_run() -> None:
    environment = python(max_calls=2)
    two = f"{running('print(1)')}\n{running('print(2)')}\n{running('print(3)')}"
    rollout = played(environment, PROBLEM, two, running("print(4)"), "never asked")
    assert told(rollout) == ["1", "2", "error: no call is left"]
    assert [message.role for message in rollout.messages][-1] == "assistant"


@hostile
def test_nonsense_is_worth_nothing_and_costs_nothing(reply: str) -> None:
    began = time.monotonic()
    assert python().reward(PROBLEM, rollout_of(PROBLEM, Message("assistant", reply))) == 0.0
    assert time.monotonic() - began < NO_LOOP_S


class _NoSandbox:
    async def run(self, call: SandboxCall) -> SandboxResult:
        raise SandboxUnavailable("bubblewrap is missing: install it")


def test_without_a_sandbox_the_episode_fails_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "_engine", _NoSandbox())

    class Session:
        problem = PROBLEM

        async def reply(self, messages: Any = None, tools: Any = None) -> Message:
            return CallingByLine.parse(None, [], _Said(running("print(1)")), [])  # type: ignore[arg-type]

    with pytest.raises(SandboxUnavailable, match="install it"):
        asyncio.run(python().play(PROBLEM, Session()))  # type: ignore[arg-type]


class _Said:
    def __init__(self, text: str) -> None:
        self.text = text


def test_a_rollout_that_ran_out_of_turns_is_scored_as_it_is() -> None:
    rollout: FinishedRollout = rollout_of(PROBLEM, Message("assistant", "let me think"))
    assert python().reward(PROBLEM, rollout) == 0.0
