"""Rollouts of tests, and what rewards make of them."""

import asyncio
from typing import Any

from environments.rewards.registry import RewardPart, Rewards
from environments.types import FinishedRollout, FunctionCall, Message, Problem, ToolCall

HOSTILE = {
    "empty": "",
    "blank": " \n\t ",
    "one character": "x" * 10**6,
    "one digit": "7" * 10**6,
    "words": "the " * 250_000,
    "open tags": "<answer>" * 125_000,
    "closed tags": "</answer>" * 110_000,
    "open boxes": "\\boxed{" * 140_000,
    "answers announced": "the answer is ((" * 60_000,
    "fences": "```\n" * 250_000,
    "controls": "\x00\x1b[2J\x07\u202e" * 100_000,
    "halves of characters": "\ud800" * 100_000,
    "brackets": "[" * 10**6,
    "objects": '{"a":' * 200_000,
    "commas": "1,111" + ",111" * 200_000,
    "newlines": "\n" * 10**6,
    "thoughts": "<think>" * 140_000,
}
"""What a policy may say that knows nothing, or tries what pays."""

NO_LOOP_S = 10.0
"""What is linear takes a fraction of a second for each of these on any machine, however busy; what is
quadratic takes minutes. This lies between them."""


def problem(**data: Any) -> Problem:
    return Problem(key="k", messages=[Message("user", "How much is it?")], data=data)


def rollout(
    text: str | None, *, calls: list[tuple[str, str]] | None = None, thought: str | None = None
) -> FinishedRollout:
    """One reply; `calls` are names and arguments."""
    made = [ToolCall(f"call_{number}", FunctionCall(*call)) for number, call in enumerate(calls or [])]
    reply = Message("assistant", text, tool_calls=made, reasoning_content=thought)
    return spoken([*problem().messages, reply])


def spoken(messages: list[Message]) -> FinishedRollout:
    return FinishedRollout(token_ids=[], loss_mask=[], inference_logprobs=[], messages=messages)


def score(name: str, asked: Problem, played: FinishedRollout | str, **parameters: Any) -> float:
    """What a reward gives, by way of its name and its arguments in a config."""
    if isinstance(played, str):
        played = rollout(played)
    return asyncio.run(Rewards([RewardPart(name=name, args=parameters)]).score(asked, played))
