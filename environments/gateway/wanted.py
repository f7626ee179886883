"""What a client wants, whatever the API in which it says so, and the messages that it tells the policy."""

from collections.abc import Iterable
from typing import Any

import msgspec

from environments.config import Stops
from environments.types import MAX_TOKEN_ID, JsonObject, Message

MAX_DEPTH = 24
"""Of tools."""
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 100
MAX_STOP_TOKENS = 64


class Wanted(msgspec.Struct, kw_only=True):
    """The next replies of a conversation."""

    messages: list[Message]
    tools: list[JsonObject] | None
    """None: those of the problem."""
    n: int = 1
    max_tokens: int | None
    stops: Stops
    is_streamed: bool


class InvalidMessages(ValueError):
    """A conversation that no policy can be told."""


class NoPromptLogprobs(ValueError):
    """What the policy would say of a prompt was asked for."""


class ToldMessage(msgspec.Struct, omit_defaults=True):
    """A message as clients of chat completions send it: of any role, with content of parts."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """The same, as vLLM calls it."""


def told(messages: Iterable[ToldMessage]) -> list[Message]:
    """The same, as the policy is told. Raises InvalidMessages."""
    try:
        found = [_message(message) for message in messages]
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise InvalidMessages(str(error)) from None
    if not found:
        raise InvalidMessages("there are no messages")
    return found


def checked_stops(strings: str | list[str] | None, token_ids: list[int] | None = None, *, name: str = "stop") -> Stops:
    """What ends a reply besides the policy. Raises ValueError."""
    words = [strings] if isinstance(strings, str) else strings or []
    if len(words) > MAX_STOPS or not all(0 < len(word) <= MAX_STOP_CHARACTERS for word in words):
        raise ValueError(f"{name} may be up to {MAX_STOPS} strings of 1 to {MAX_STOP_CHARACTERS} characters")
    tokens = token_ids or []
    if len(tokens) > MAX_STOP_TOKENS or not all(0 <= token <= MAX_TOKEN_ID for token in tokens):
        raise ValueError(f"stop_token_ids may be up to {MAX_STOP_TOKENS} token ids")
    return Stops(strings=tuple(words), token_ids=tuple(tokens))


def checked_tools(tools: list[JsonObject] | None) -> list[JsonObject] | None:
    """Tools in the form of chat completions. Raises ValueError for what is no function, or no database would take."""
    for tool in tools or ():
        if tool.get("type") != "function":
            raise ValueError(f"a tool of type {tool.get('type')!r} is not understood: only functions are")
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ValueError("a tool is no function with a name")
    if tools is not None and not _is_storable(tools):
        raise ValueError(f"tools must be nested at most {MAX_DEPTH} deep, without NULs and integers beyond 64 bits")
    return tools


def function_tool(name: Any, description: Any, parameters: Any) -> JsonObject:
    """A tool in the form of chat completions, out of what other APIs say of it."""
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def function_call(key: Any, name: Any, arguments: Any) -> JsonObject:
    """A call in the form of chat completions."""
    return {"id": key, "function": {"name": name, "arguments": arguments}}


def checked_limit(max_tokens: int | None, name: str = "max_tokens") -> int | None:
    """Sampled tokens that a client wants at most. Raises ValueError."""
    if max_tokens is not None and max_tokens < 1:
        raise ValueError(f"{name} must be at least 1")
    return max_tokens


def _message(message: ToldMessage) -> Message:
    fields: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _content(message.content),
        "name": message.name,
        "tool_call_id": message.tool_call_id,
    }
    if message.role == "assistant":
        fields["tool_calls"] = [_call(call) for call in message.tool_calls or ()]
        thoughts = message.reasoning_content
        fields["reasoning_content"] = message.reasoning if thoughts is None else thoughts
    if fields["content"] is None and not any(fields.get(key) for key in ("tool_calls", "reasoning_content")):
        fields["content"] = ""
    return msgspec.convert(fields, Message)


def _content(content: str | list[JsonObject] | None) -> str | list[JsonObject] | None:
    if not isinstance(content, list):
        return content
    parts: list[JsonObject] = []
    for part in content:
        if not isinstance(part, dict):
            raise ValueError("a part of content is no object")
        text = part.get("text", part.get("refusal"))
        if not isinstance(text, str):
            raise ValueError(f"content of type {part.get('type')!r} is not understood: only text is")
        parts.append({"type": "text", "text": text})
    return parts


def _call(call: JsonObject) -> JsonObject:
    function = call.get("function")
    if not isinstance(function, dict):
        raise ValueError("a tool call has no function")
    return {"id": call.get("id") or "", "function": {key: function[key] for key in _CALLED if key in function}}


def _is_storable(value: Any, depth: int = 0) -> bool:
    """Whether a record and a database take it: what the policy was told is kept with the rollout."""
    if isinstance(value, str):
        return "\0" not in value
    if isinstance(value, int):
        return -(2**63) <= value < 2**64
    if depth > MAX_DEPTH:
        return False
    if isinstance(value, dict):
        return all("\0" not in key and _is_storable(each, depth + 1) for key, each in value.items())
    return not isinstance(value, list) or all(_is_storable(each, depth + 1) for each in value)


_CALLED = ("name", "arguments")
