"""Tasksets of verifiers, played by verifiers itself in a process of its virtual environment (make verifiers-venv)."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from environments import venvs
from environments.errors import RegistryError
from environments.types import ErrorKind, PlayedRollout, RolloutError, Split, StopReason
from tests.environments.bridges.verifiers_room import SOME, VerifiersRoom
from tests.environments.speaking import END, Speaking, call, check_recorded

HOME = Path(__file__).parents[3] / ".venv-verifiers"

pytestmark = pytest.mark.slow  # a process that imports verifiers, and one for each episode's tools


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VerifiersRoom]:
    try:
        python = venvs.find(HOME / venvs.DIRECTORY, "verifiers")
    except venvs.VenvError:
        pytest.skip(f"needs verifiers in {HOME.name}: run `make verifiers-venv`")
    with asyncio.Runner() as runner:
        made = VerifiersRoom(runner, python, tmp_path_factory.mktemp("model"))
        yield made
        made.close()


def sum_call(a: int, b: int) -> str:
    return call(a, b, "sums_add").removesuffix(END)


def trained(rollout: PlayedRollout) -> list[int]:
    return [token for token, mask in zip(rollout.token_ids, rollout.loss_mask, strict=True) if mask]


def said(policy: Speaking) -> list[list[int]]:
    return [completion.token_ids for _, completion in policy.log]


@pytest.mark.parametrize("client", ["chat", "train"])
def test_an_episode_is_scored_as_verifiers_scores_it_and_recorded_as_it_was_sampled(
    room: VerifiersRoom, client: str
) -> None:
    room.load("spelling", splits=SOME, client=client)
    problem = room.problem()
    assert problem.key == "stone"
    assert [message.text for message in problem.messages] == ["Be brief.", "Spell stone backwards."]
    rollouts, policy = room.play(["enots", "stone", "It is enots."], n=3)
    assert [each.error for each in rollouts] == [None] * 3
    for rollout in rollouts:
        check_recorded(rollout, [turn for turn in policy.log if turn[1].token_ids == trained(rollout)])
    scored = {room.tokenizer.decode(trained(each)).removesuffix(END): each for each in rollouts}
    assert {reply: each.reward for reply, each in scored.items()} == room.score_alone("spelling", *scored)
    assert {reply: each.metrics for reply, each in scored.items()} == {
        "enots": {"reward/right": 0.75, "reward/brief": 0.25, "letters": 5.0},
        "stone": {"reward/right": 0.0, "reward/brief": 0.25, "letters": 5.0},
        "It is enots.": {"reward/right": 0.0, "reward/brief": 0.0, "letters": 12.0},
    }


@pytest.mark.parametrize("client", ["chat", "train"])
def test_tools_run_in_servers_of_verifiers_and_their_results_extend_the_branch(
    room: VerifiersRoom, client: str
) -> None:
    room.load("sums", splits=SOME, client=client)
    problem = room.problem()
    [tool] = problem.tools
    assert (tool["function"]["name"], tool["function"]["description"]) == ("sums_add", "Add two numbers.")
    a, b = map(int, problem.messages[0].text.split(" + "))
    [rollout], policy = room.play([sum_call(a, b), str(a + b)])
    assert rollout.error is None, rollout.error
    check_recorded(rollout, policy.log)
    assert rollout.reward == 1.0
    assert rollout.metrics == {"reward/right": 0.7, "reward/called": 0.3, "calls": 1.0}
    assert f"<tool_response>\n{a + b}\n</tool_response>" in room.tokenizer.decode(rollout.token_ids)


def test_a_tool_server_for_all_episodes_keeps_them_apart(room: VerifiersRoom) -> None:
    room.load("sums", splits=SOME, args={"taskset": {"task": {"own_server": False}}})
    assert [tool["function"]["name"] for tool in room.problem().tools] == ["sums_add"]
    rollouts, _ = room.play([sum_call(1, 2), sum_call(3, 4), "3", "7"], n=2)
    assert [(each.error, each.metrics["calls"] > 0) for each in rollouts] == [(None, True)] * 2
    assert sum(each.metrics["calls"] for each in rollouts) == 2.0


def test_calls_that_no_tool_can_run_are_answered(room: VerifiersRoom) -> None:
    room.load("sums", splits=SOME, args={"taskset": {"task": {"own_server": False}}})
    [rollout], _ = room.play([call(1, 2, "subtract").removesuffix(END), sum_call(1, 2), "3"])
    assert rollout.error is None, rollout.error
    assert "error: there is no tool 'subtract'; there are sums_add" in room.tokenizer.decode(rollout.token_ids)
    assert rollout.metrics["calls"] == 1.0


def test_a_budget_that_runs_out_ends_the_episode_which_is_scored_as_it_is(room: VerifiersRoom) -> None:
    room.load("sums", splits=SOME, args={"taskset": {"task": {"own_server": False}}})
    [rollout], _ = room.play([sum_call(1, 2)] * 2, max_turns=2)
    assert (rollout.error, rollout.stop_reason) == (None, StopReason.TURNS)
    assert (rollout.reward, rollout.metrics["calls"]) == (0.3, 2.0)


def test_what_breaks_keeps_its_kind_and_its_text(room: VerifiersRoom) -> None:
    def error(fails: str) -> RolloutError:
        room.load("spelling", splits=SOME, args={"taskset": {"task": {"fails": fails}}})
        [rollout] = room.play(["enots"])[0] if fails else [room.play_without_policy()]
        assert rollout.error is not None
        return rollout.error

    of_setup, of_scoring, of_policy = error("setup"), error("scoring"), error("")
    assert (of_setup.kind, of_setup.type) == (ErrorKind.ENVIRONMENT, "TaskError")
    assert "the dictionary is lost" in of_setup.message
    assert (of_scoring.kind, of_scoring.type) == (ErrorKind.REWARD, "TaskError")
    assert "nobody can spell that" in of_scoring.message
    assert (of_policy.kind, of_policy.type) == (ErrorKind.POLICY, "PolicyError")
    assert "the engine is away" in of_policy.message


@pytest.mark.parametrize("stage", ["finalize", "scoring"])
def test_what_was_not_scored_in_time_has_no_reward(room: VerifiersRoom, stage: str) -> None:
    args = {"taskset": {"task": {"fails": f"{stage} without end"}}, "agent": {"timeout": {stage: 0.5}}}
    room.load("spelling", splits=SOME, args=args)
    [rollout], _ = room.play(["enots"])
    assert rollout.error is not None, rollout.reward
    assert (rollout.error.kind, rollout.error.type) == (ErrorKind.REWARD, "TimeoutError")
    assert f"ended it by {stage}_timeout" in rollout.error.message


def test_splits_are_settings_and_selections_or_an_eighth_by_key(room: VerifiersRoom) -> None:
    room.load("spelling", splits={"train": {"taskset": {"words": 5}}, "eval": {"select": {"skip": 9, "limit": 2}}})
    assert (room.count(Split.TRAIN), room.count(Split.EVAL)) == (5, 2)
    assert room.problem(Split.EVAL, 1).key == "drift"
    room.load("spelling")
    held_out, trained_on = (
        {room.problem(split, number).key for number in range(room.count(split))} for split in (Split.EVAL, Split.TRAIN)
    )
    assert (held_out & trained_on, len(held_out | trained_on)) == (set(), 12)


def test_seats_share_one_rollout_where_that_was_said(room: VerifiersRoom) -> None:
    room.load("duet", seats="shared", splits={"train": {}, "eval": {}})
    [rollout], policy = room.play(["bell", "bell"])
    assert rollout.error is None, rollout.error
    assert (rollout.reward, len(rollout.branch_lengths)) == (0.75, 2)
    assert rollout.metrics == {"caller/reward/agrees": 1.0, "echo/reward/agrees": 0.5}
    assert trained(rollout) == [token for reply in said(policy) for token in reply]


def test_a_seat_that_plays_several_times_is_one_rollout_where_that_was_said(room: VerifiersRoom) -> None:
    attempts = {"id": "best-of-n", "n": 2}
    room.load("spelling", splits=SOME, args=attempts)
    [rollout], _ = room.play(["enots", "stone"])
    assert rollout.error is not None
    assert "seat 'agent' plays several times in an episode" in rollout.error.message
    room.load("spelling", splits=SOME, args=attempts, seats="shared")
    [rollout], policy = room.play(["enots", "stone"])
    assert rollout.error is None, rollout.error
    assert (rollout.reward, rollout.metrics["agent/best"], len(policy.log)) == (0.625, 0.5, 2)


@pytest.mark.parametrize(
    ("taskset", "args", "words"),
    [
        ("duet", {}, "has the seats caller, echo, and a rollout has one reward"),
        ("duet", {"seats": "shared", "args": {"fixed_echo": True}}, "seat 'echo' is not to be trained"),
        ("spelling", {"seats": "shared", "args": {"id": "user-sim"}}, "seat 'user' is not to be trained"),
        ("sums", {}, "Sums has tasks without end"),
        ("spelling", {"args": {"agent": {"harness": {"id": "bash"}}}}, "played by the program 'bash'"),
        ("spelling", {"args": {"agent": {"runtime": {"type": "docker"}}}}, "in a runtime of type 'docker'"),
        ("spelling", {"args": {"agent": {"model": "gpt"}}}, "seat 'agent' has a model of its own"),
        ("spelling", {"args": {"agent": {"retries": {"max_retries": 2}}}}, "seat 'agent' has retries"),
        (
            "spelling",
            {"elsewhere": True, "args": {"agent": {"retries": {"rules": [{"type": "TaskError", "max_retries": 1}]}}}},
            "seat 'agent' has retries",
        ),
        ("spelling", {"client": "train", "tokenizer": ""}, "needs a tokenizer"),
        ("spelling", {"client": "train", "tokenizer": "t"}, "holds no tokenizer.json"),
        ("spelling", {"client": "train", "renderer": "runes"}, "renderers knows none named 'runes'"),
        ("spelling", {"id": "owner/letters"}, "rollyard envs install verifiers --with PACKAGE"),
        ("spelling", {"id": "./nowhere"}, "there is no directory"),
        ("spelling", {"args": {"taskset": {"letters": 3}}}, "letters"),
        ("contained", {}, "tasks of type ContainedTask need a container"),
        ("boxed", {}, "task 0 wants the image 'debian'"),
        ("boxed", {"args": {"taskset": {"wants": "network"}}}, "task 0 wants a network with rules"),
        ("boxed", {"args": {"taskset": {"wants": "server"}}}, "tool server 'search' is at http://search.example"),
        (
            "boxed",
            {"args": {"taskset": {"wants": "runtime"}}},
            "tool server 'search' runs in a runtime of type 'prime'",
        ),
        ("boxed", {"args": {"taskset": {"task": {"judges": [{"id": "reference"}]}}}}, "judge 'reference' asks a model"),
    ],
)
def test_what_cannot_be_played_in_a_room_is_refused_by_name(
    room: VerifiersRoom, taskset: str, args: dict[str, Any], words: str
) -> None:
    with pytest.raises(RegistryError) as refusal:
        room.load(taskset, **args)
    assert words in str(refusal.value)
