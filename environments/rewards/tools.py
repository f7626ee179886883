"""`tool_calls`: whether the policy called the functions that the problem expects, with the arguments it expects."""

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import orjson
from msgspec import Meta

from environments.rewards import replies
from environments.types import FinishedRollout, Message, Problem

_COMPARED = 128
"""Calls of the policy that are compared; all of them count as made."""


class _Call(NamedTuple):
    name: str
    arguments: Any


def tool_calls(
    problem: Problem,
    rollout: FinishedRollout,
    *,
    field: Annotated[
        str, Meta(description="Where problem.data has the calls: a list of objects with name and arguments.")
    ] = "calls",
    ordered: Annotated[bool, Meta(description="Their order matters.")] = False,
    partial: Annotated[bool, Meta(description="Some of them count too; else it is all and no other, or 0.")] = True,
    name_share: Annotated[
        float, Meta(ge=0, le=1, description="What a call counts that has the right name and other arguments.")
    ] = 0.0,
) -> float:
    """Share of the expected calls that were made, of the larger number: calls that nobody expected cost as much.

    Arguments are compared as JSON: 1 is 1.0 but not true. Where no call is expected, any answer in words gives 1.
    """
    expected = _expected(problem, field)
    messages = replies.messages_of_policy(problem, rollout)
    count = sum(len(message.tool_calls) for message in messages)
    if not expected:
        return float(not count and bool(replies.answer(problem, rollout).strip()))
    worths = [[_worth(wanted, call, name_share) for call in _made(messages)] for wanted in expected]
    worth = _best_in_order(worths) if ordered else _best(worths)
    share = worth / max(len(expected), count)
    return share if partial or share == 1 else 0.0


def _expected(problem: Problem, field: str) -> list[_Call]:
    try:
        calls = [_Call(call["name"], call.get("arguments") or {}) for call in replies.wanted(problem, field)]
        # OpenAI's form has them as a text of JSON.
        calls = [_Call(name, orjson.loads(given) if isinstance(given, str) else given) for name, given in calls]
    except (TypeError, KeyError, AttributeError, orjson.JSONDecodeError) as exc:
        raise ValueError(f"field: {field!r} of problem.data is no list of objects with name and arguments") from exc
    return calls


def _made(messages: Sequence[Message]) -> list[_Call]:
    calls = [call.function for message in messages for call in message.tool_calls]
    return [_Call(call.name, _parsed(call.arguments)) for call in calls[:_COMPARED]]


def _parsed(arguments: str) -> Any:
    try:
        return orjson.loads(replies.encodable(arguments) or "{}")
    except orjson.JSONDecodeError:
        return None  # no object of arguments is that


def _worth(wanted: _Call, made: _Call, name_share: float) -> float:
    if wanted.name != made.name:
        return 0.0
    return 1.0 if _is_same(wanted.arguments, made.arguments) else name_share


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values of JSON are equal. Goes no deeper than the shallower of them."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _best(worths: list[list[float]]) -> float:
    """What pairs of an expected and a made call are worth, the best first. No other pairing is worth more: equal calls
    have equal rows, and all others of a name are worth the same."""
    pairs = sorted(
        ((worth, row, column) for row, made in enumerate(worths) for column, worth in enumerate(made) if worth),
        key=lambda pair: -pair[0],
    )
    rows: set[int] = set()
    columns: set[int] = set()
    total = 0.0
    for worth, row, column in pairs:
        if row not in rows and column not in columns:
            rows.add(row)
            columns.add(column)
            total += worth
    return total


def _best_in_order(worths: list[list[float]]) -> float:
    """The most that pairs are worth that do not cross: the longest common subsequence, with weights."""
    before = [0.0] * (len(worths[0]) + 1)
    for made in worths:
        row = [0.0]
        for column, worth in enumerate(made):
            row.append(max(row[column], before[column + 1], before[column] + worth))
        before = row
    return before[-1]
