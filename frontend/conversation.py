"""Stored messages as people read them: what was said, thought, and called.

Ours are in the OpenAI form; those of an Atropos environment may have any shape, so nothing of it is taken for granted.
"""

import json
from typing import Any, NamedTuple

JsonObject = dict[str, Any]


class ShownCall(NamedTuple):
    """A call of a tool."""

    id: str
    name: str
    arguments: str
    """As JSON of one space after each comma and colon; as the policy wrote them where they are none."""


class Tool(NamedTuple):
    """What the policy may call."""

    name: str
    description: str
    parameters: str
    """Their JSON Schema, as JSON; empty: none."""


class Spoken(NamedTuple):
    """One message."""

    role: str
    name: str
    text: str
    reasoning: str
    calls: list[ShownCall]
    answers: str
    """Which call it answers."""


def spoken(message: JsonObject) -> Spoken:
    """A stored message."""
    calls = message.get("tool_calls")
    return Spoken(
        role=_text(message.get("role")),
        name=_text(message.get("name")),
        text=_text(message.get("content")),
        reasoning=_text(message.get("reasoning_content")),
        calls=[_call(call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else [],
        answers=_text(message.get("tool_call_id")),
    )


def told(tools: list[JsonObject] | None) -> list[Tool]:
    """The tools of a rollout."""
    functions = [tool.get("function", tool) for tool in tools or []]
    return [
        Tool(_text(each.get("name")), _text(each.get("description")), _text(each.get("parameters")))
        for each in functions
        if isinstance(each, dict)
    ]


def in_a_line(message: JsonObject) -> str:
    """What a message says, for lists: its text, else the calls it makes."""
    said = spoken(message)
    return said.text or ", ".join(f"{call.name}({call.arguments})" for call in said.calls)


def _call(call: JsonObject) -> ShownCall:
    function = call.get("function")
    called = function if isinstance(function, dict) else call
    arguments = called.get("arguments")
    return ShownCall(_text(call.get("id")), _text(called.get("name")), _arguments(arguments))


def _arguments(arguments: Any) -> str:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return str(arguments)
    return json.dumps(arguments, ensure_ascii=False)


def _text(value: Any) -> str:
    """What is text, and of parts their text; what else there may be, as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_text(part.get("text", part) if isinstance(part, dict) else part) for part in value)
    return json.dumps(value, ensure_ascii=False)
