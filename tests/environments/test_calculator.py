"""calculator: a loop with a tool, scored by what was called and what was said."""

import asyncio
from typing import Any

import pytest

from environments import registry
from environments.chat.template import TemplateChat
from environments.config import SamplingParams
from environments.errors import InvalidArguments
from environments.fakes import ScriptedPolicy
from environments.policy import Completion
from environments.runner import play_group
from environments.solutions import solved
from environments.types import FunctionCall, Message, PlayedRollout, Split, StopReason, ToolCall


class Calling(TemplateChat):
    """`add {...}` is a call."""

    def parse(self, prompt_token_ids: list[int], completion: Completion, tools: Any) -> Message:
        calls = [
            ToolCall(f"call_{number}", FunctionCall("add", text.strip()))
            for number, text in enumerate(completion.text.split("add ")[1:])
        ]
        return Message("assistant", None if calls else completion.text, tool_calls=calls)


def played(*replies: str, **sampling: Any) -> PlayedRollout:
    """The first problem: `A`, `B` and `SUM` stand for its numbers."""
    environment = registry.load("calculator", {"max_calls": 2})
    problem = environment.problem(Split.TRAIN, 0)
    a, b = problem.data["a"], problem.data["b"]
    told = [reply.replace("SUM", str(a + b)).replace("A", str(a)).replace("B", str(b)) for reply in replies]
    policy = ScriptedPolicy(told)
    params = SamplingParams(**({"max_turns": 9} | sampling))
    group = play_group(environment, problem, policy, params, 1, deadline_s=5, chat=Calling(policy))
    [rollout] = asyncio.run(group)
    assert rollout.error is None, rollout.error
    return rollout


CALL = 'add {"a": A, "b": B}'


@pytest.mark.parametrize(
    ("replies", "reward", "calls"),
    [
        ((CALL, "SUM"), 1.0, 1),
        ((CALL, " SUM\n"), 1.0, 1),
        ((CALL, "<think>7, or 8</think>SUM"), 1.0, 1),
        ((CALL, "So the two make **SUM**."), 1.0, 1),
        ((CALL, "no"), 0.3, 1),
        ((CALL, "<think>SUM</think>no"), 0.3, 1),
        ((CALL, "SUM7"), 0.3, 1),
        ((CALL, "SUM or 7"), 0.3, 1),
        (('add {"a": 1, "b": 2}', "SUM"), 0.1, 1),
        (("add {", "SUM"), 0.0, 1),
        (('add {"a": true, "b": 2}', "SUM"), 0.0, 1),
        (("SUM",), 0.0, 0),
        ((f"add [] {CALL}", "SUM"), 1.0, 2),
        ((CALL, CALL, CALL), 0.3, 3),
    ],
)
def test_rewards(replies: tuple[str, ...], reward: float, calls: int) -> None:
    rollout = played(*replies)
    assert rollout.reward == reward
    assert rollout.metrics == {"right": float(reward == 1.0), "calls": float(calls)}


def test_the_tool_answers_each_call_by_its_id_and_says_what_is_wrong_with_one() -> None:
    rollout = played(f"add [] {CALL}", "SUM")
    answers = {message.tool_call_id: message.text for message in rollout.messages if message.role == "tool"}
    assert answers["call_0"] == "error: call add with the whole numbers a and b"
    assert answers["call_1"] == rollout.messages[-1].text


def test_numbers_beyond_all_reason_are_no_call() -> None:
    assert played('add {"a": 1' + "0" * 4000 + ', "b": 2}', "x", max_tokens=9000).reward == 0.0


def test_a_budget_that_runs_out_is_scored_as_it_is() -> None:
    rollout = played(CALL, CALL, max_turns=1)
    assert (rollout.reward, rollout.stop_reason) == (0.3, StopReason.TURNS)


def test_problems_are_the_same_every_time_and_splits_share_none() -> None:
    environment = registry.load("calculator")
    keys = {split: {environment.problem(split, index).key for index in range(200)} for split in Split}
    assert keys[Split.TRAIN].isdisjoint(keys[Split.EVAL])
    assert environment.problem(Split.TRAIN, 5) == registry.load("calculator").problem(Split.TRAIN, 5)
    with pytest.raises(InvalidArguments, match="min_digits"):
        registry.load("calculator", {"min_digits": 9})


def test_solutions_have_their_tools_and_flawed_ones_call_nothing() -> None:
    lines = list(solved("calculator", {}, 40, echo=0.5))
    assert all(line["tools"][0]["function"]["name"] == "add" for line in lines)
    called = ["tool_calls" in line["messages"][1] for line in lines]
    assert 5 < sum(called) < 35
    flawed = lines[called.index(False)]["messages"]
    assert [message["role"] for message in flawed] == ["user", "assistant"]
    assert flawed[1]["content"] == flawed[0]["content"]
