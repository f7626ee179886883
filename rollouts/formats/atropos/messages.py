"""Messages of any shape as the store has them: objects whose `role` and `content` are text that Postgres can hold."""

import json
from typing import Any

from rollouts.storable import MAX_DEPTH, displayable

JsonObject = dict[str, Any]
EXACT = 2**53
"""Numbers from here on may come back from the database as others than they were."""


def storable(message: JsonObject) -> JsonObject:
    """The message as it is shown and exported. It equals the original unless something had to be changed."""
    shown = {
        displayable(str(key)): _plain(_calls(value) if key == "tool_calls" else value, depth=1)
        for key, value in message.items()
        if value is not None and key not in {"role", "content"}
    }
    return {"role": _text(message["role"]), "content": _text(message["content"]), **shown}


def _text(value: Any) -> str:
    """Content as text: of parts their text, and what is no text as JSON."""
    if isinstance(value, str):
        return displayable(value)
    if value is None:
        return ""
    if isinstance(value, list):
        return "\n".join(_text(part.get("text", part) if isinstance(part, dict) else part) for part in value)
    return _json(value)


def _calls(value: Any) -> Any:
    """Calls with arguments as text, as a policy writes them: the database sorts the keys of an object."""
    return [_call(each) for each in value] if isinstance(value, list) else value


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(arguments := function.get("arguments"), dict):
        return call
    return call | {"function": function | {"arguments": _json(arguments)}}


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return displayable(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return value if abs(value) < EXACT else str(value)
    if depth >= MAX_DEPTH:
        return _json(value)
    if isinstance(value, dict):
        return {displayable(str(key)): _plain(each, depth + 1) for key, each in value.items()}
    return [_plain(each, depth + 1) for each in value]


def _json(value: Any) -> str:
    return displayable(json.dumps(value, ensure_ascii=False))
