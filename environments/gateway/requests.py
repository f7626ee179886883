"""What clients ask for: requests of the OpenAI API, of vLLM's token routes and of Atropos, as far as they matter here.

Unknown fields are passed over, because clients send many. Temperature and what else would change the distribution is
the run's: whatever is asked for, the policy samples as its trainer expects.
"""

from typing import Any

import msgspec

from environments.types import JsonObject, Message

MAX_DEPTH = 24
"""Of tools."""
MAX_REPLIES = 64
"""Largest `n` of one request."""


class ChatMessage(msgspec.Struct, omit_defaults=True):
    """A message as clients send it: of any role, with content of parts."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    def told(self) -> Message:
        """As the policy is told it. Raises ValueError, which says what is not understood."""
        is_assistant = self.role == "assistant"
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": _content(self.content),
            "name": self.name,
            "tool_call_id": self.tool_call_id,
        }
        if is_assistant:
            message["tool_calls"] = [_call(call) for call in self.tool_calls or ()]
            message["reasoning_content"] = self.reasoning_content
        if message["content"] is None and not any(message.get(key) for key in ("tool_calls", "reasoning_content")):
            message["content"] = ""
        return msgspec.convert(message, Message)


class StreamOptions(msgspec.Struct):
    """How a stream ends."""

    include_usage: bool = False


class Wishes(msgspec.Struct, kw_only=True):
    """What every route takes."""

    n: int | None = None
    max_tokens: int | None = None

    @property
    def replies(self) -> int:
        """How many replies the client wants."""
        return 1 if self.n is None else self.n

    @property
    def most_tokens(self) -> int | None:
        """Sampled tokens that the client wants at most."""
        return self.max_tokens

    def check(self) -> None:
        """Raise ValueError for numbers out of range."""
        if not 1 <= self.replies <= MAX_REPLIES:
            raise ValueError(f"n must lie in 1..{MAX_REPLIES}")
        if self.most_tokens is not None and self.most_tokens < 1:
            raise ValueError("max_tokens must be at least 1")


class ChatRequest(Wishes, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[ChatMessage]
    tools: list[JsonObject] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    model: str = "policy"

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    def check(self) -> None:
        super().check()
        if self.tools is not None and not _is_storable(self.tools):
            raise ValueError(f"tools must be nested at most {MAX_DEPTH} deep, and hold no NUL")


class CompletionRequest(Wishes, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[int | list[int]]
    model: str = "policy"


class SamplingWishes(Wishes, kw_only=True):
    """`sampling_params` of the token route."""


class TokensRequest(msgspec.Struct, kw_only=True):
    """`POST /inference/v1/generate`."""

    token_ids: list[int]
    sampling_params: SamplingWishes = msgspec.field(default_factory=SamplingWishes)
    model: str = "policy"


class AtroposPrompt(msgspec.Struct):
    """The prompt of `POST /generate`."""

    prompt_token_ids: list[int]


class AtroposRequest(Wishes, kw_only=True):
    """`POST /generate`, which Atropos' servers of type vllm send."""

    prompt: AtroposPrompt


def _is_storable(value: Any, depth: int = 0) -> bool:
    """Whether a database takes it: what the policy was told is kept with the rollout."""
    if isinstance(value, str):
        return "\0" not in value
    if depth > MAX_DEPTH:
        return False
    if isinstance(value, dict):
        return all("\0" not in key and _is_storable(each, depth + 1) for key, each in value.items())
    return not isinstance(value, list) or all(_is_storable(each, depth + 1) for each in value)


def _content(content: str | list[JsonObject] | None) -> str | list[JsonObject] | None:
    if not isinstance(content, list):
        return content
    parts: list[JsonObject] = []
    for part in content:
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


_CALLED = ("name", "arguments")
