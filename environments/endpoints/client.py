"""Ask an endpoint for a reply. Whatever it answers is data: bounded, checked, and without the key it was sent.

chat ── in turn, max_in_flight ──▶ request ── 429, 5xx, no answer ──▶ again, a little later, at most twice
                                      ├── a parameter it does not take ──▶ at once, in other words
                                      └── redirect, 4xx, no JSON, too long ──▶ EndpointError
"""

import asyncio
from collections.abc import Container, Sequence
from typing import Any

import msgspec

from environments.client.address import SCHEME
from environments.config import SamplingParams
from environments.endpoints.address import ChatEndpoint
from environments.errors import (
    ConversationTooLong,
    EndpointError,
    EndpointRefused,
    EndpointUnavailable,
    UnreadableAnswer,
    words_of,
)
from environments.servers import AnswerTooLarge, Server, ServerAnswer, ServerLost
from environments.types import ChatAnswer, FunctionCall, JsonObject, Message, ToolCall

TRIES = 3
_FIRST_PAUSE_S = 0.5
_PATIENCE = 4
"""Timeouts of one request that waiting in turn, all tries and the pauses between them may take together."""
_MOST_BYTES = 2**20
"""Of an answer, beyond what the tokens that were asked for take."""
_MOST_TOKEN_BYTES = 128
_MAX_WORDS = 300
_MOST_TOKENS = 2**31 - 1
"""That a server is believed to have used for one reply."""
_TOO_LONG_CODE, _TOO_LONG_PARAM = "context_length_exceeded", "input_tokens"
"""By which OpenAI says it, and by which vLLM does."""
_HIDDEN_KEY = "[key]"
_SHORTEST_KEY = 12
"""That is hidden. A shorter one is no secret, and may be a word of a reply, of code or of the answer's own JSON."""
_OTHERWISE = {"max_tokens": "max_completion_tokens", "temperature": ""}
"""Parameters that models which think refuse by name, and what they take instead; empty: nothing."""


class _Called(msgspec.Struct):
    name: str
    arguments: str = ""


class _ToolCall(msgspec.Struct):
    function: _Called
    id: str = ""


class _Said(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """The same, as vLLM calls it, which takes either back."""
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    message: _Said
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Chat(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


class _Refusal(msgspec.Struct):
    message: str = ""
    code: str | int | None = None
    param: str | None = None


class _Refused(msgspec.Struct):
    error: _Refusal | str = ""


_decode = msgspec.json.Decoder(_Chat).decode
_decode_refused = msgspec.json.Decoder(_Refused).decode
_UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)


class EndpointClient:
    """One endpoint. Belongs to one event loop; safe for many requests at once."""

    def __init__(
        self,
        endpoint: ChatEndpoint,
        key: str = "",
        *,
        tries: int = TRIES,
        kind: str = "Endpoint",
        tool_choice: str = "",
    ) -> None:
        """`key`: what its reference stands for. `kind`: what errors call it, before its name. `tool_choice` goes along
        with tools; empty: the server's own."""
        self.endpoint = endpoint
        self._tool_choice = {"tool_choice": tool_choice} if tool_choice else {}
        self._key = key if len(key) >= _SHORTEST_KEY else ""
        """That is to be seen nowhere."""
        self._refused = set[str]()
        """Parameters that it has answered without."""
        self._tries = tries
        self._name = f"{kind} {endpoint.name}"
        base = endpoint.base_url.rstrip("/")
        self._path = "/v1/chat/completions" if base.endswith("/v1") or base.startswith(SCHEME) else "/chat/completions"
        self._server = Server(base, api_key=key or None)
        self._turn = asyncio.Semaphore(endpoint.max_in_flight)

    async def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[JsonObject] = (),
        *,
        sampling: SamplingParams,
        seed: int | None = None,
    ) -> ChatAnswer:
        """The next reply to a conversation. Raises EndpointUnavailable, EndpointRefused, UnreadableAnswer.

        It takes `_PATIENCE` timeouts of the endpoint at most. A `seed` goes along; few servers keep their word on it.
        """
        wanted: dict[str, Any] = {
            "model": self.endpoint.model,
            "messages": msgspec.to_builtins(list(messages)),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
        }
        if tools:
            wanted |= {"tools": list(tools), **self._tool_choice}
        if sampling.stops.strings:
            wanted["stop"] = list(sampling.stops.strings)
        if seed is not None:
            wanted["seed"] = seed
        within_s = _PATIENCE * self.endpoint.timeout_s
        try:
            async with asyncio.timeout(within_s), self._turn:
                return self._read(await self._ask(wanted, sampling.max_tokens))
        except TimeoutError:
            raise EndpointUnavailable(f"{self._name} gave no answer within {within_s:g} s.") from None

    async def aclose(self) -> None:
        """Close the connections."""
        await self._server.aclose()

    async def _ask(self, wanted: JsonObject, max_tokens: int) -> ServerAnswer:
        """An answer of status 200."""
        pause_s = _FIRST_PAUSE_S
        for trial in range(1, self._tries + 1):
            try:
                answer = await self._tell(wanted, max_tokens)
                self._refuse(answer)
                return answer
            except EndpointUnavailable:
                if trial == self._tries:
                    raise
            await asyncio.sleep(pause_s)
            pause_s *= 4
        raise AssertionError("the last try raises")

    async def _tell(self, wanted: JsonObject, max_tokens: int) -> ServerAnswer:
        """What it answers; where that is the name of a parameter it does not take, what it answers without that."""
        refused = set(self._refused)
        while True:
            answer = await self._send(msgspec.json.encode(_without(wanted, refused)), max_tokens)
            if answer.status == 200:  # else those may have been no reason
                self._refused |= refused
            name = (_refusal(answer).param or "") if answer.status == 400 else ""
            if name not in _OTHERWISE or name in refused:
                return answer
            refused.add(name)

    async def _send(self, body: bytes, max_tokens: int) -> ServerAnswer:
        timeout_s = self.endpoint.timeout_s
        try:
            answer = await self._server.ask(
                "POST",
                self._path,
                deadline_s=timeout_s,
                most_bytes=_MOST_BYTES + max_tokens * _MOST_TOKEN_BYTES,
                body=body,
            )
        except TimeoutError:
            raise EndpointUnavailable(f"{self._name} gave no answer within {timeout_s:g} s.") from None
        except AnswerTooLarge:
            raise UnreadableAnswer(f"{self._name} answered with more bytes than so few tokens have.") from None
        except ServerLost as error:
            # Its own words have the address, which is nobody's business but the administrator's.
            cause = type(error.__cause__ or error).__name__
            raise EndpointUnavailable(f"{self._name} cannot be reached ({cause}).") from None
        # Before anything of it is cut: half a key is worth hiding too.
        key = self._key.encode()
        return answer._replace(body=answer.body.replace(key, _HIDDEN_KEY.encode())) if key else answer

    def _refuse(self, answer: ServerAnswer) -> None:
        """Raise for whatever is no answer."""
        status = answer.status
        if status == 200:
            return
        if 300 <= status < 400:
            fix = "Redirects are not followed: name the address that it leads to."
            raise EndpointRefused(f"{self._name} answered {status}. {fix}")
        refusal = _refusal(answer)
        words = self._hidden(_on_one_line(refusal.message))[:_MAX_WORDS]
        kind: type[EndpointError] = EndpointUnavailable if status >= 500 or status in (408, 429) else EndpointRefused
        if status == 400 and (refusal.code == _TOO_LONG_CODE or refusal.param == _TOO_LONG_PARAM):
            kind = ConversationTooLong
        raise kind(f"{self._name} answered {status}{f': {words}' if words else ''}")

    def _read(self, answer: ServerAnswer) -> ChatAnswer:
        try:
            chat = _decode(answer.body)
            choice = chat.choices[0]
            message = self._message(choice.message)
        except (*_UNDECODABLE, IndexError) as error:
            what = self._hidden(words_of(error)[:_MAX_WORDS])
            raise UnreadableAnswer(f"{self._name} gave no chat completion: {what}") from None
        usage = chat.usage or _Usage()
        return ChatAnswer(
            message=message,
            finish_reason="length" if choice.finish_reason == "length" else "stop",
            prompt_tokens=min(max(0, usage.prompt_tokens), _MOST_TOKENS),
            completion_tokens=min(max(0, usage.completion_tokens), _MOST_TOKENS),
        )

    def _message(self, said: _Said) -> Message:
        calls = [
            ToolCall(
                id=self._hidden(call.id) or f"call_{number}",
                function=FunctionCall(self._hidden(call.function.name), self._hidden(call.function.arguments)),
            )
            for number, call in enumerate(said.tool_calls or [])
        ]
        content = said.content if said.content is not None else said.refusal
        if content is None and not calls:
            content = ""
        thoughts = said.reasoning_content or said.reasoning
        return Message(
            role="assistant",
            content=None if content is None else self._hidden(content),
            tool_calls=calls,
            reasoning_content=None if thoughts is None else self._hidden(thoughts),
        )

    def _hidden(self, text: str) -> str:
        """A text of the server's without the key: an echo must not carry it into rows and logs."""
        return text.replace(self._key, _HIDDEN_KEY) if self._key else text


def _without(wanted: JsonObject, refused: Container[str]) -> JsonObject:
    """What is asked for, said without these parameters."""
    said = ((_OTHERWISE[name] if name in refused else name, value) for name, value in wanted.items())
    return {name: value for name, value in said if name}


def _refusal(answer: ServerAnswer) -> _Refusal:
    """What a server says of why it refused, if it does so in the usual form; else the start of the body."""
    try:
        error = _decode_refused(answer.body).error
    except _UNDECODABLE:
        error = answer.text
    return _Refusal(error) if isinstance(error, str) else error


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
