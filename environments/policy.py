"""The policy as the runner sees it: tokens in, tokens and logprobs out.

Tokens are the truth, text is derived. The chat template renders the first prompt once; every later turn is *appended*
to the tokens that were sampled, never rendered again, because decoding and encoding a reply may give other tokens than
the ones the policy chose. `OpenAIPolicy` speaks the token-in, token-out routes next to an OpenAI-compatible API
(vLLM with `--enable-scale-out --logprobs-mode processed_logprobs`).
"""

import asyncio
import json
import math
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import msgspec

from environments.config import SamplingParams
from environments.errors import ContextFull, InvalidAnswer, PolicyRefused, PolicyUnavailable, UnfollowableTurn
from environments.servers import AnswerTooLarge, Server, ServerAnswer, ServerLost
from environments.types import MAX_TOKEN_ID, JsonObject, Message

LOADING_LABEL = "loading"
"""Label of a server whose weights are being replaced or only partly were. What it samples belongs to no version."""
_MISSING_LOGPROB = -9999.0
"""What vLLM sends for a NaN or an absent logprob."""
_ROUNDING = 1e-3
"""A logprob of a near-certain token may come out this much above zero."""
_MAX_ANSWER_BYTES = 4 * 2**20
"""Of an answer, beyond what the tokens that were asked for take."""
_MOST_REPLIES = 64
"""Of one request to a server of which more is not known: vLLM refuses more than it samples at a time, which is 128 on a
CPU and more elsewhere, unless it was started with another `--max-num-seqs`."""
_MAX_TOKEN_BYTES = 1024
"""Of a token with its number, text and logprob, as JSON. A long run of spaces takes half of it."""


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One sampled reply: at least one token, each with its logprob; of an endpoint, its text alone.

    Checked when made, as if a stranger had sent it (raises `InvalidAnswer`): wrong numbers here would be trained on.
    """

    token_ids: list[int]
    """With the end-of-turn token when it was sampled."""
    logprobs: list[float]
    """After temperature."""
    text: str
    """Of the tokens, without control tokens, and up to where a client's stop begins."""
    finish_reason: Literal["stop", "length"]
    stopped_by: str | int | None = None
    """The client's stop that ended it: a string, or a token id. `token_ids` have it, `text` has not."""
    first_policy_version: int | None = None
    """Version behind the first token, as the server labels it. None: the server has no label."""
    last_policy_version: int | None = None
    unseen_tokens: int | None = None
    """Of a model that shows no tokens: how many it says it sampled. `token_ids` are empty then. None: they are here."""

    @property
    def ended_its_turn(self) -> bool:
        """Whether the policy itself ended it, on an end-of-turn token."""
        return self.finish_reason == "stop" and self.stopped_by is None

    def __post_init__(self) -> None:
        if self.unseen_tokens is not None and not (self.token_ids or self.logprobs):
            return
        if not self.token_ids or len(self.token_ids) != len(self.logprobs):
            raise InvalidAnswer(f"{len(self.token_ids)} tokens came with {len(self.logprobs)} logprobs.")
        if min(self.token_ids) < 0 or max(self.token_ids) > MAX_TOKEN_ID:
            raise InvalidAnswer("A token id is outside 0..2^31-1.")
        for position, logprob in enumerate(self.logprobs):
            if not math.isfinite(logprob) or logprob <= _MISSING_LOGPROB or logprob > _ROUNDING:
                raise InvalidAnswer(f"The logprob at position {position} is {logprob}.")


class Policy(Protocol):
    """What plays. Implementations raise `PolicyError`; anything else they raise is treated as one."""

    async def render(self, messages: Sequence[Message], tools: Sequence[JsonObject] = ()) -> list[int]:
        """Return the prompt tokens that tell of the tools and ask for the next reply."""
        ...

    async def extend(
        self,
        token_ids: list[int],
        messages: Sequence[Message],
        added: Sequence[Message],
        tools: Sequence[JsonObject] = (),
    ) -> list[int]:
        """Return `token_ids` plus the tokens of `added` and of the next reply's start.

        `messages` is the conversation behind `token_ids`; its last message is the reply they end with.
        """
        ...

    async def sample(self, prompt_token_ids: list[int], n: int, sampling: SamplingParams) -> list[Completion]:
        """Sample `n` independent replies."""
        ...


class _Logprob(msgspec.Struct):
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_Logprob]


class _VersionSpan(msgspec.Struct):
    version: str


class _Choice(msgspec.Struct):
    token_ids: list[int]
    text: str
    finish_reason: str
    logprobs: _Logprobs
    stop_reason: str | int | None = None
    weight_versions: list[_VersionSpan] | None = None


class _Generated(msgspec.Struct):
    choices: list[_Choice]


class _Rendered(msgspec.Struct):
    token_ids: list[int]


_decode_generated = msgspec.json.Decoder(_Generated).decode
_decode_rendered = msgspec.json.Decoder(_Rendered).decode


class OpenAIPolicy:
    """A policy behind a server's `/v1` address. Use as an async context manager; safe for many episodes at once."""

    def __init__(
        self, base_url: str, model: str, *, api_key: str | None = None, timeout_s: float = 120.0, max_num_seqs: int = 0
    ) -> None:
        """`base_url` ends in `/v1`, or is a socket's (`unix://`). `timeout_s` bounds each request as a whole, however
        slowly bytes trickle. `max_num_seqs`: how many replies the server samples at a time; 0: that is not known."""
        self._server = Server(base_url, api_key=api_key)
        self._model = model
        self._most_replies = max_num_seqs or _MOST_REPLIES
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._server.aclose()

    async def render(self, messages: Sequence[Message], tools: Sequence[JsonObject] = ()) -> list[int]:
        return await self._render(messages, tools, for_reply=True)

    async def extend(
        self,
        token_ids: list[int],
        messages: Sequence[Message],
        added: Sequence[Message],
        tools: Sequence[JsonObject] = (),
    ) -> list[int]:
        # Only what follows the reply's end-of-turn token is taken from the template. Both texts hold the same turns up
        # to the reply, hence the same number of end-of-turn tokens: the count finds the place even where the template
        # drops or re-encodes parts of earlier replies. It finds none unless the tokens here have as many: of a token
        # that ends no turn but stands elsewhere in the template, which a BOS that is the EOS does, all that follows is
        # the conversation over again.
        end_of_turn = token_ids[-1]
        before, after = await asyncio.gather(
            self._render(messages, tools, for_reply=False), self._render([*messages, *added], tools, for_reply=True)
        )
        turns = before.count(end_of_turn)
        places = [place for place, token in enumerate(after) if token == end_of_turn]
        if turns != token_ids.count(end_of_turn) or len(places) < turns:
            raise UnfollowableTurn(
                f"The chat template does not close a turn with token {end_of_turn}, on which the reply ended; "
                "set the tokenizer's eos_token to the template's end-of-turn token."
            )
        return token_ids + after[places[turns - 1] + 1 :]

    async def sample(self, prompt_token_ids: list[int], n: int, sampling: SamplingParams) -> list[Completion]:
        # Many of one request: measured on vLLM-CPU, four to nine times the tokens per second of n requests. But a
        # server refuses to be greedy for more than one, and more than it samples at a time.
        most = self._most_replies if sampling.temperature else 1
        asking = [
            asyncio.create_task(self._sample(prompt_token_ids, min(most, n - begin), sampling))
            for begin in range(0, n, most)
        ]
        try:
            return [completion for found in await asyncio.gather(*asking) for completion in found]
        finally:
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _sample(self, prompt_token_ids: list[int], n: int, sampling: SamplingParams) -> list[Completion]:
        """The replies of one request."""
        wanted: dict[str, Any] = {
            "n": n,
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
            "logprobs": 0,  # of the sampled token only
        }
        if sampling.stops.strings:
            wanted["stop"] = sampling.stops.strings
        # A model's files may name none of the tokens that end a turn in its chat format, as those of base models do.
        if ends := dict.fromkeys([*sampling.stops.token_ids, *sampling.ends]):
            wanted["stop_token_ids"] = list(ends)
        body = {
            "model": self._model,
            "token_ids": prompt_token_ids,
            "sampling_params": wanted,
            "output_mode": "text",
        }
        answer = await self._post("/inference/v1/generate", body, tokens=n * sampling.max_tokens)
        try:
            choices = _decode_generated(answer).choices
        except (msgspec.MsgspecError, RecursionError) as exc:
            raise InvalidAnswer(f"The server's answer is not a completion with token ids and logprobs: {exc}") from exc
        if len(choices) != n:
            raise InvalidAnswer(f"Asked for {n} replies, got {len(choices)}.")
        return [_completion(choice, sampling) for choice in choices]

    async def _render(self, messages: Sequence[Message], tools: Sequence[JsonObject], *, for_reply: bool) -> list[int]:
        body = {
            "model": self._model,
            "messages": msgspec.to_builtins(messages),
            "add_generation_prompt": for_reply,
            "max_tokens": 1,
            # Told of, not parsed for: for anything but `none` a server wants to know its parser.
            **({"tools": list(tools), "tool_choice": "none"} if tools else {}),
        }
        answer = await self._post("/v1/chat/completions/render", body)
        try:
            return _decode_rendered(answer).token_ids
        except (msgspec.MsgspecError, RecursionError) as exc:
            raise InvalidAnswer(f"The server's answer is not a rendered prompt: {exc}") from exc

    async def _post(self, path: str, body: dict[str, Any], *, tokens: int = 0) -> bytes:
        content = msgspec.json.encode(body)
        try:
            answer = await self._server.ask(
                "POST",
                path,
                deadline_s=self._timeout_s,
                # A byte of what is rendered may be several tokens.
                most_bytes=_MAX_ANSWER_BYTES + tokens * _MAX_TOKEN_BYTES + 32 * len(content),
                body=content,
            )
        except TimeoutError as exc:
            raise PolicyUnavailable(f"No answer from {path} within {self._timeout_s:g} s.") from exc
        except AnswerTooLarge as exc:
            raise InvalidAnswer(str(exc)) from exc
        except ServerLost as exc:
            raise PolicyUnavailable(str(exc)) from exc
        if answer.status >= 500 or answer.status == 429:
            raise PolicyUnavailable(f"{path} answered {answer.status}: {_reason(answer)}")
        if _is_too_long(answer):
            raise ContextFull(_reason(answer))
        if answer.status != 200:
            raise PolicyRefused(f"{path} answered {answer.status}: {_reason(answer)}")
        return answer.body


def _completion(choice: _Choice, sampling: SamplingParams) -> Completion:
    if choice.finish_reason not in ("stop", "length"):
        raise InvalidAnswer(f"The server ended the reply with {choice.finish_reason!r}.")
    if len(choice.token_ids) > sampling.max_tokens:
        raise InvalidAnswer(f"{len(choice.token_ids)} tokens came, {sampling.max_tokens} were allowed.")
    # A server names all but one of the tokens that end a turn here too: those are nobody's stops.
    asked = (*sampling.stops.strings, *sampling.stops.token_ids)
    spans = choice.weight_versions or []
    if any(span.version == LOADING_LABEL for span in spans):
        raise InvalidAnswer("The server sampled while its weights were being replaced.")
    versions = [int(span.version) for span in spans if span.version.isdecimal()]
    # A span without a number (the label before anyone set one) makes the whole answer unlabelled.
    labelled = bool(spans) and len(versions) == len(spans)
    return Completion(
        token_ids=choice.token_ids,
        logprobs=[entry.logprob for entry in choice.logprobs.content],
        text=choice.text,
        finish_reason="stop" if choice.finish_reason == "stop" else "length",
        stopped_by=choice.stop_reason if choice.stop_reason in asked else None,
        first_policy_version=versions[0] if labelled else None,
        last_policy_version=versions[-1] if labelled else None,
    )


def _is_too_long(answer: ServerAnswer) -> bool:
    """Whether a server of vLLM refuses a prompt for its length, of whatever it is rendered from."""
    try:
        return answer.status == 400 and bool(json.loads(answer.body)["error"]["param"] == "input_tokens")
    except (ValueError, LookupError, TypeError, RecursionError):
        return False


def _reason(answer: ServerAnswer) -> str:
    """The server's own words, from the error shapes in use, else the start of the body."""
    try:
        body = json.loads(answer.body)
        error = body.get("error", body)
        return str(error["message"] if isinstance(error, dict) and "message" in error else error)[:500]
    except (ValueError, AttributeError, RecursionError):
        return answer.text
