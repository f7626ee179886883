"""What clients ask for: requests of the OpenAI API, of vLLM's token routes and of Atropos, as far as they matter here.

Unknown fields are passed over, because clients send many. Temperature and what else would change the distribution is
the run's: whatever is asked for, the policy samples as its trainer expects.
"""

from typing import Any

import msgspec

from environments.config import Stops
from environments.gateway.wanted import (
    NoPromptLogprobs,
    ToldMessage,
    Wanted,
    checked_limit,
    checked_stops,
    checked_tools,
    told,
)
from environments.types import JsonObject

MAX_REPLIES = 64
"""Largest `n` of one request."""


class StreamOptions(msgspec.Struct):
    """How a stream ends."""

    include_usage: bool = False


class Wishes(msgspec.Struct, kw_only=True):
    """What every route takes."""

    n: int | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stream: bool | None = None
    prompt_logprobs: Any = None

    @property
    def replies(self) -> int:
        """How many replies the client wants."""
        return 1 if self.n is None else self.n

    @property
    def most_tokens(self) -> int | None:
        """Sampled tokens that the client wants at most."""
        return self.max_tokens

    @property
    def stops(self) -> Stops:
        """What ends a reply besides the policy. Raises ValueError."""
        return checked_stops(self.stop, self.stop_token_ids)

    def check(self) -> None:
        """Raise ValueError for what is out of range, or would be sampled and trained where nothing was to be."""
        if self.prompt_logprobs is not None:
            raise NoPromptLogprobs("prompt_logprobs is not served: the policy says nothing about prompts, leave it out")
        if not 1 <= self.replies <= MAX_REPLIES:
            raise ValueError(f"n must lie in 1..{MAX_REPLIES}")
        checked_limit(self.most_tokens)
        checked_stops(self.stop, self.stop_token_ids)


class ChatRequest(Wishes, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[ToldMessage]
    tools: list[JsonObject] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    stream_options: StreamOptions | None = None
    continue_final_message: bool | None = None
    functions: list[JsonObject] | None = None
    model: str = "policy"

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    def wanted(self) -> Wanted:
        """What is asked for. Raises ValueError, InvalidMessages."""
        self.check()
        if self.continue_final_message:
            raise ValueError("continue_final_message is not understood: every reply is one of its own, leave it out")
        if self.functions:
            raise ValueError("functions is not understood: send them as tools")
        return Wanted(
            tools=checked_tools(self.tools),
            messages=told(self.messages),
            n=self.replies,
            max_tokens=self.most_tokens,
            stops=self.stops,
            is_streamed=bool(self.stream),
        )


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
    stream: bool | None = None
    model: str = "policy"


class AtroposPrompt(msgspec.Struct):
    """The prompt of `POST /generate`."""

    prompt_token_ids: list[int]


class AtroposRequest(Wishes, kw_only=True):
    """`POST /generate`, which Atropos' servers of type vllm send."""

    prompt: AtroposPrompt
