"""The address through which any program plays the live policy: an ASGI app over open sessions.

    /s/KEY/v1/chat/completions      or  /v1/chat/completions with `Authorization: Bearer KEY`, or `X-Session-ID: KEY`
    /s/KEY/v1/completions           prompts as token ids
    /s/KEY/v1/models
    /s/KEY/inference/v1/generate    tokens in, tokens out
    /s/KEY/generate  /s/KEY/health  as Atropos' servers of type vllm ask
    /health                         without a key

Nothing is read or done before the key is known. A client that hangs up ends what it asked for at the inference server,
and nothing of it is recorded.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from environments.errors import ContextFull, EpisodeError, PolicyRefused, PolicyUnavailable, SessionOver, TurnsOver
from environments.gateway import answers
from environments.gateway.requests import AtroposRequest, ChatRequest, CompletionRequest, TokensRequest
from environments.gateway.sessions import Sessions
from environments.session import Asked, Session

MAX_BODY_BYTES = 32 * 2**20
KEEP_ALIVE_S = 10.0
"""Between signs of life in a stream that waits for the policy: proxies cut silent ones."""

T = TypeVar("T")
Handler = Callable[[Session, Request, bytes], Awaitable[Response]]


class RefusedRequest(Exception):
    """A request that is answered with an error, in the form of the OpenAI API."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    @property
    def body(self) -> bytes:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return msgspec.json.encode({"error": {"message": str(self), "type": kind, "code": self.code, "param": None}})

    def response(self) -> Response:
        return Response(self.body, self.status, media_type="application/json")


class _Kind(NamedTuple):
    error: type[EpisodeError]
    status: int
    code: str


_KINDS = (
    _Kind(ContextFull, 400, "context_length_exceeded"),
    _Kind(TurnsOver, 400, "turns_exhausted"),
    _Kind(SessionOver, 410, "session_over"),
    _Kind(PolicyUnavailable, 503, "policy_unavailable"),  # which clients try again
    _Kind(PolicyRefused, 400, "policy_refused"),
    _Kind(EpisodeError, 502, "policy_failed"),
)


def make_app(sessions: Sessions, model: str = "policy") -> Starlette:
    """The app over these sessions."""

    async def chat(session: Session, request: Request, body: bytes) -> Response:
        wanted = _decoded(body, _chat)
        try:
            messages = [message.told() for message in wanted.messages]
        except (ValueError, msgspec.ValidationError) as error:
            raise RefusedRequest(400, "invalid_messages", str(error)) from None
        if not messages:
            raise RefusedRequest(400, "invalid_messages", "messages is empty")
        asking = session.ask(messages, wanted.tools, n=wanted.replies, max_tokens=wanted.most_tokens)
        logprobs = bool(wanted.logprobs)
        if wanted.stream:
            usage = bool(wanted.stream_options and wanted.stream_options.include_usage)
            return StreamingResponse(
                _events(session, asking, wanted.model, logprobs=logprobs, usage=usage),
                media_type="text/event-stream",
                headers={"Cache-Control": "no-store"},
            )
        asked = await _unless_gone(request, asking)
        session.deliver(asked)
        return _json(answers.chat(asked, wanted.model, logprobs=logprobs))

    async def complete(session: Session, request: Request, body: bytes) -> Response:
        wanted = _decoded(body, _completion)
        token_ids: Any = wanted.prompt
        if isinstance(token_ids, list) and len(token_ids) == 1 and isinstance(token_ids[0], list):
            token_ids = token_ids[0]
        if isinstance(token_ids, str) or any(isinstance(token, list) for token in token_ids):
            raise RefusedRequest(
                400, "invalid_prompt", "prompt must be one list of token ids; for text use chat/completions"
            )
        asked = await _asked_tokens(session, request, token_ids, wanted.replies, wanted.most_tokens)
        return _json(answers.completion(asked, wanted.model))

    async def generate(session: Session, request: Request, body: bytes) -> Response:
        wanted = _decoded(body, _tokens)
        wishes = wanted.sampling_params
        asked = await _asked_tokens(session, request, wanted.token_ids, wishes.replies, wishes.most_tokens)
        return _json(answers.tokens(asked, wanted.model))

    async def generate_for_atropos(session: Session, request: Request, body: bytes) -> Response:
        wanted = _decoded(body, _atropos)
        token_ids = wanted.prompt.prompt_token_ids
        asked = await _asked_tokens(session, request, token_ids, wanted.replies, wanted.most_tokens)
        return _json(answers.atropos(asked))

    async def models(session: Session, request: Request, body: bytes) -> Response:
        return _json(answers.models(model))

    async def healthy(session: Session, request: Request, body: bytes) -> Response:
        return Response(status_code=200)

    async def is_up(request: Request) -> Response:
        return Response(status_code=200)

    served: list[tuple[str, str, Handler]] = [
        ("POST", "/v1/chat/completions", chat),
        ("POST", "/v1/completions", complete),
        ("GET", "/v1/models", models),
        ("POST", "/inference/v1/generate", generate),
        ("POST", "/generate", generate_for_atropos),
    ]
    routes = [Route("/health", is_up, methods=["GET"])]
    for method, path, handler in [*served, ("GET", "/health", healthy)]:
        routes.append(Route(f"/s/{{key}}{path}", _keyed(sessions, handler), methods=[method]))
    routes += [Route(path, _keyed(sessions, handler), methods=[method]) for method, path, handler in served]
    return Starlette(routes=routes)


_chat = msgspec.json.Decoder(ChatRequest)
_completion = msgspec.json.Decoder(CompletionRequest)
_tokens = msgspec.json.Decoder(TokensRequest)
_atropos = msgspec.json.Decoder(AtroposRequest)


def _keyed(sessions: Sessions, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            session = await sessions.find(_key(request))
            if session is None:
                raise RefusedRequest(401, "unknown_session", "No session has this key, or it is over.")
            return await handler(session, request, await read_body(request))
        except RefusedRequest as refusal:
            return refusal.response()
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        except EpisodeError as error:
            return _refusal(error).response()

    return answer


def _key(request: Request) -> str:
    if (key := request.path_params.get("key")) is not None:
        return str(key)
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else request.headers.get("x-session-id", "")


async def read_body(request: Request, most_bytes: int | None = None) -> bytes:
    """The body. Raises RefusedRequest for one that is too large."""
    body, limit = bytearray(), MAX_BODY_BYTES if most_bytes is None else most_bytes
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise RefusedRequest(413, "body_too_large", f"A request has at most {limit} bytes.")
    return bytes(body)


def _decoded(body: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    try:
        wanted = decoder.decode(body)
        limits: Any = getattr(wanted, "sampling_params", wanted)
        limits.check()
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise RefusedRequest(400, "invalid_request", str(error) or "nested too deeply") from None
    return wanted


async def _asked_tokens(
    session: Session, request: Request, token_ids: list[int], n: int, max_tokens: int | None
) -> Asked:
    if not token_ids:
        raise RefusedRequest(400, "invalid_prompt", "the prompt has no tokens")
    asked = await _unless_gone(request, session.ask_tokens(token_ids, n=n, max_tokens=max_tokens))
    session.deliver(asked)
    return asked


async def _unless_gone(request: Request, asking: Awaitable[Asked]) -> Asked:
    """The answer, unless the client hangs up before: then the work is cancelled. Raises ClientDisconnect."""
    work = asyncio.ensure_future(asking)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _events(
    session: Session, asking: Awaitable[Asked], model: str, *, logprobs: bool, usage: bool
) -> AsyncIterator[bytes]:
    """A reply as events, once it is there; Starlette cancels this when the client hangs up."""
    work = asyncio.ensure_future(asking)
    try:
        while not (await asyncio.wait({work}, timeout=KEEP_ALIVE_S))[0]:
            yield b": waiting for the policy\n\n"
        try:
            asked = work.result()
            session.deliver(asked)
        except EpisodeError as error:
            yield b"data: " + _refusal(error).body + b"\n\n"
            return
        for event in answers.chat_events(asked, model, logprobs=logprobs, usage=usage):
            yield event
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


def _refusal(error: EpisodeError) -> RefusedRequest:
    kind = next(kind for kind in _KINDS if isinstance(error, kind.error))
    return RefusedRequest(kind.status, kind.code, str(error))


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
