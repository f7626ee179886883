"""Rollouts for tests of environments with code and tools: scored as they are, or played by a policy that says lines."""

import asyncio
from typing import Any

import pytest

from environments import registry
from environments.chat.template import TemplateChat
from environments.config import SamplingParams
from environments.env import Environment
from environments.fakes import ScriptedPolicy
from environments.policy import Completion
from environments.runner import play_group
from environments.types import FinishedRollout, FunctionCall, Message, PlayedRollout, Problem, Split, ToolCall

CALL = "call "
"""`call NAME JSON` in a line is a call of a tool."""


class CallingByLine(TemplateChat):
    """A line `call NAME JSON` is a call, the other lines are text."""

    def parse(self, prompt_token_ids: list[int], completion: Completion, tools: Any) -> Message:
        lines = completion.text.split("\n")
        calls = [line.removeprefix(CALL).partition(" ") for line in lines if line.startswith(CALL)]
        text = "\n".join(line for line in lines if not line.startswith(CALL))
        return Message(
            "assistant",
            text,
            tool_calls=[
                ToolCall(f"call_{len(prompt_token_ids)}_{number}", FunctionCall(name, arguments))
                for number, (name, _, arguments) in enumerate(calls)
            ],
        )


def played(environment: Environment[Any], problem: Problem, *replies: str, deadline_s: float = 30) -> PlayedRollout:
    """What comes of an episode in which the policy says these."""
    policy = ScriptedPolicy(list(replies))
    params = SamplingParams(max_turns=len(replies), max_tokens=100_000)
    chat = CallingByLine(policy)
    [rollout] = asyncio.run(play_group(environment, problem, policy, params, 1, deadline_s=deadline_s, chat=chat))
    assert rollout.error is None, rollout.error
    return rollout


def rollout_of(problem: Problem, *messages: Message) -> FinishedRollout:
    """A rollout of the problem's messages and these."""
    said = [*problem.messages, *messages]
    return FinishedRollout(token_ids=[], loss_mask=[], inference_logprobs=[], messages=said)


def scored(environment: Environment[Any], problem: Problem, *replies: str) -> list[FinishedRollout]:
    """A group of rollouts of one reply each, with their rewards."""
    rollouts = [rollout_of(problem, Message("assistant", reply)) for reply in replies]
    scores = asyncio.run(environment.score_group(problem, rollouts))
    for rollout, score in zip(rollouts, scores, strict=True):
        assert isinstance(score, float), score
        rollout.reward = score
    return rollouts


def reward_of(environment: Environment[Any], problem: Problem, reply: str) -> float:
    """Of a rollout of one reply."""
    [rollout] = scored(environment, problem, reply)
    assert rollout.reward is not None
    return rollout.reward


def reward_of_solution(environment: Environment[Any], problem: Problem) -> float:
    """Of the conversation that the environment itself calls a solution."""
    solution = environment.solution(problem)
    assert solution is not None
    rollout = rollout_of(problem, *solution[len(problem.messages) :])
    [score] = asyncio.run(environment.score_group(problem, [rollout]))
    assert isinstance(score, float), score
    return score


def check_splits(name: str, args: dict[str, Any], count: int) -> None:
    """Problems are the same every time, and none that is held out is trained on."""
    environment, again = registry.load(name, args), registry.load(name, args)
    assert [environment.problem(Split.TRAIN, n) for n in (0, 7)] == [again.problem(Split.TRAIN, n) for n in (0, 7)]
    keys, words = ({}, {})
    for split in Split:
        problems = [environment.problem(split, index) for index in range(min(count, environment.count(split)))]
        keys[split] = {problem.key for problem in problems}
        words[split] = {problem.messages[-1].text for problem in problems}
        assert len(keys[split]) > len(problems) / 4
        assert len(keys[split]) == len(words[split])
    assert keys[Split.TRAIN].isdisjoint(keys[Split.EVAL])
    assert words[Split.TRAIN].isdisjoint(words[Split.EVAL])


HOSTILE = [
    "",
    "\0\x01\x02\x1b[2J\ud800",
    "x" * 1_000_000,
    "```" * 300_000,
    "<answer>" * 120_000,
    "</answer>" * 120_000,
    "<answer>" + "9" * 900_000 + "</answer>",
    "<answer>" + "[" * 400_000 + "]" * 400_000 + "</answer>",
    "<think>" * 150_000,
    "<sql>" + "(" * 500_000 + "</sql>",
]
"""Replies that are worth nothing and must cost nothing."""

hostile = pytest.mark.parametrize("reply", HOSTILE, ids=range(len(HOSTILE)))
