"""calculator: add two numbers that are too long for the policy's head, with a tool that adds.

At least two turns: the policy calls the tool with both numbers, is told the sum, and says it. Needs no data.
"""

import json
import random
from typing import Annotated

from msgspec import Meta

from environments.env import PolicySession
from environments.library.made_up import MadeUp, MadeUpArgs
from environments.library.splits import is_held_out
from environments.library.tool_calls import FAILED, answer_calls
from environments.rewards import replies
from environments.types import FinishedRollout, FunctionCall, JsonObject, Message, Problem, Split, ToolCall

_TOOL: JsonObject = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
_MAX_DIGITS = 50
_RIGHT, _CALLED, _VALID = 1.0, 0.3, 0.1
"""Rewards: of the sum, of a call with the right numbers, of any call that the tool can run."""


class CalculatorArgs(MadeUpArgs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of calculator."""

    min_digits: Annotated[int, Meta(ge=1, description="Fewest digits of a number.")] = 2
    max_digits: Annotated[int, Meta(ge=1, le=_MAX_DIGITS, description="Most digits of a number.")] = 4
    max_calls: Annotated[int, Meta(ge=1, description="Calls of the tool that are answered, per episode.")] = 4


class Calculator(MadeUp[CalculatorArgs]):
    """Add two numbers with a tool.

    Task: add two whole numbers, too long for the head, by calling the tool `add`; then say the sum.
    Data: numbers drawn by the seed; an eighth of all pairs is held out. Licence: ours.
    Reward: 1 for the sum as the last number said after a call with the right numbers, .3 for such a call, .1 for any
        call that can be run.
    Checked: every solution gives 1; a tiny model learns it in 60 steps, on three seeds.
    """

    name = "calculator"
    version = "2"
    args_type = CalculatorArgs

    def problem(self, split: Split, index: int) -> Problem:
        a, b = self._numbers(split, index)
        return Problem(
            key=f"{a}+{b}",
            messages=[Message("user", f"{a} + {b}")],
            data={"a": a, "b": b},
            tools=[_TOOL],
        )

    async def play(self, problem: Problem, session: PolicySession) -> None:
        """Answer calls until the policy makes none, or too many."""
        await answer_calls(problem, session, _answered, self.args.max_calls)

    def reward(self, problem: Problem, rollout: FinishedRollout) -> float:
        """1 for the sum after a call, else .3 for a call with the right numbers, .1 for one that the tool can run."""
        right = {"a": problem.data["a"], "b": problem.data["b"]}
        calls = [_arguments(call.function) for message in rollout.messages for call in message.tool_calls]
        valid = [call for call in calls if call is not None]
        said = replies.last_number(replies.answer(problem, rollout))
        is_right = right in valid and said == str(right["a"] + right["b"])
        rollout.metrics["right"] = float(is_right)
        rollout.metrics["calls"] = float(len(calls))
        return _RIGHT if is_right else _CALLED if right in valid else _VALID if valid else 0.0

    def solution(self, problem: Problem) -> list[Message]:
        a, b = problem.data["a"], problem.data["b"]
        call = ToolCall("call_1", FunctionCall("add", json.dumps({"a": a, "b": b})))
        return [
            *problem.messages,
            Message("assistant", "", tool_calls=[call]),
            Message("tool", str(a + b), tool_call_id="call_1"),
            Message("assistant", str(a + b)),
        ]

    def _numbers(self, split: Split, index: int) -> tuple[int, int]:
        """Draw pairs until one belongs to the split: whether it does depends on the pair alone."""
        rng = random.Random(f"{self.args.seed}/{split}/{index}")
        while True:
            a, b = (self._number(rng) for _ in range(2))
            if is_held_out(f"{a}+{b}") == (split is Split.EVAL):
                return a, b

    def _number(self, rng: random.Random) -> int:
        # Only random() is promised to give the same numbers in every Python version.
        digits = self.args.min_digits + int(rng.random() * (self.args.max_digits - self.args.min_digits + 1))
        low: int = 10 ** (digits - 1)
        return low + int(rng.random() * 9 * low)


def _arguments(function: FunctionCall) -> JsonObject | None:
    """What the tool would run with; None for a call that it cannot run."""
    try:
        arguments = json.loads(function.arguments)
    except (ValueError, RecursionError):
        return None
    is_whole = isinstance(arguments, dict) and arguments.keys() == {"a", "b"}
    if function.name != "add" or not is_whole or not all(map(_is_number, arguments.values())):
        return None
    return dict(arguments)


async def _answered(function: FunctionCall) -> str:
    arguments = _arguments(function)
    if arguments is None:
        return f"{FAILED} call add with the whole numbers a and b"
    return str(arguments["a"] + arguments["b"])


def _is_number(value: object) -> bool:
    return type(value) is int and abs(value) < 10 ** (2 * _MAX_DIGITS)
