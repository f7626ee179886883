"""The address through which any program plays the live policy: an ASGI app over open sessions.

    /s/KEY/v1/chat/completions      or  /v1/chat/completions with `Authorization: Bearer KEY`, or `X-Session-ID: KEY`
    /s/KEY/v1/responses             the same conversations, as newer clients of OpenAI ask
    /s/KEY/v1/messages              the same, as clients of Anthropic ask; their key may come as `X-Api-Key`, too
    /s/KEY/v1/completions           prompts as token ids
    /s/KEY/v1/models
    /s/KEY/inference/v1/generate    tokens in, tokens out
    /s/KEY/generate  /s/KEY/health  as Atropos' servers of type vllm ask
    /health                         without a key

Nothing is read or done before the key is known, and nothing is decoded that its session has no room for: all sessions
share one event loop. A client that hangs up ends what it asked for at the inference server, and nothing of it is
recorded.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from environments.errors import ContextFull, EpisodeError, PolicyRefused, PolicyUnavailable, SessionOver, TurnsOver
from environments.gateway import answers
from environments.gateway.dialects import CHAT, MESSAGES, RESPONSES, Dialect, Refusal
from environments.gateway.requests import AtroposRequest, CompletionRequest, TokensRequest, Wishes
from environments.gateway.sessions import Sessions
from environments.gateway.waiting import streamed, unless_gone
from environments.gateway.wanted import InvalidMessages, NoPromptLogprobs
from environments.session import Asked, Session

MAX_BODY_BYTES = 32 * 2**20
T = TypeVar("T")
Handler = Callable[[Session, Request, bytes], Awaitable[Response]]


class RefusedRequest(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    def body(self, form: Refusal = answers.refusal) -> bytes:
        return msgspec.json.encode(form(self.status, self.code, str(self)))

    def response(self, form: Refusal = answers.refusal) -> Response:
        return Response(self.body(form), self.status, media_type="application/json")


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
_CODES: dict[type[Exception], str] = {
    InvalidMessages: "invalid_messages",
    NoPromptLogprobs: "no_prompt_logprobs",
}
"""Of requests that are not understood; of all others `invalid_request`."""


def make_app(sessions: Sessions, model: str = "policy") -> Starlette:
    """The app over these sessions."""

    async def complete(session: Session, request: Request, body: bytes) -> Response:
        wanted = _decoded(body, _completion)
        token_ids: Any = wanted.prompt
        if isinstance(token_ids, list) and len(token_ids) == 1 and isinstance(token_ids[0], list):
            token_ids = token_ids[0]
        if isinstance(token_ids, str) or any(isinstance(token, list) for token in token_ids):
            raise RefusedRequest(
                400, "invalid_prompt", "prompt must be one list of token ids; for text use chat/completions"
            )
        asked = await _asked_tokens(session, request, token_ids, wanted)
        return _json(answers.completion(asked, wanted.model))

    async def generate(session: Session, request: Request, body: bytes) -> Response:
        wanted = _decoded(body, _tokens)
        asked = await _asked_tokens(session, request, wanted.token_ids, wanted.sampling_params)
        return _json(answers.tokens(asked, wanted.model))

    async def generate_for_atropos(session: Session, request: Request, body: bytes) -> Response:
        wanted = _decoded(body, _atropos)
        asked = await _asked_tokens(session, request, wanted.prompt.prompt_token_ids, wanted)
        return _json(answers.atropos(asked))

    async def models(session: Session, request: Request, body: bytes) -> Response:
        return _json(answers.models(model))

    async def healthy(session: Session, request: Request, body: bytes) -> Response:
        return Response(status_code=200)

    async def is_up(request: Request) -> Response:
        return Response(status_code=200)

    served: list[tuple[str, str, Handler, Refusal]] = [
        ("POST", "/v1/chat/completions", _conversation(CHAT), CHAT.refusal),
        ("POST", "/v1/responses", _conversation(RESPONSES), RESPONSES.refusal),
        ("POST", "/v1/messages", _conversation(MESSAGES), MESSAGES.refusal),
        ("POST", "/v1/completions", complete, answers.refusal),
        ("GET", "/v1/models", models, answers.refusal),
        ("POST", "/inference/v1/generate", generate, answers.refusal),
        ("POST", "/generate", generate_for_atropos, answers.refusal),
    ]
    routes = [Route("/health", is_up, methods=["GET"])]
    for method, path, handler, form in [*served, ("GET", "/health", healthy, answers.refusal)]:
        routes.append(Route(f"/s/{{key}}{path}", _keyed(sessions, handler, form), methods=[method]))
    routes += [Route(path, _keyed(sessions, handler, form), methods=[method]) for method, path, handler, form in served]
    return Starlette(routes=routes, exception_handlers={HTTPException: _not_served})


_completion = msgspec.json.Decoder(CompletionRequest)
_tokens = msgspec.json.Decoder(TokensRequest)
_atropos = msgspec.json.Decoder(AtroposRequest)


def _conversation(dialect: Dialect) -> Handler:
    async def converse(session: Session, request: Request, body: bytes) -> Response:
        try:
            told = dialect.decoder.decode(body)
            session.check_fits(messages=len(told.messages))
            wanted = told.wanted()
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise _not_understood(error) from None
        asking = session.ask(
            wanted.messages, wanted.tools, n=wanted.n, max_tokens=wanted.max_tokens, stops=wanted.stops
        )
        if not wanted.is_streamed:
            asked = await unless_gone(request, asking)
            session.deliver(asked)
            return _json(dialect.whole(asked, told))

        def events(asked: Asked) -> Iterator[bytes]:
            session.deliver(asked)
            yield from dialect.events(asked, told)

        def refused(error: EpisodeError) -> bytes:
            return b"event: error\ndata: " + _refusal(error).body(dialect.refusal) + b"\n\n"

        headers = {"Cache-Control": "no-store"}
        stream = await streamed(request, asking, events, refused)
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    return converse


def _keyed(sessions: Sessions, handler: Handler, form: Refusal) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            session = await sessions.find(_key(request))
            if session is None:
                raise RefusedRequest(401, "unknown_session", "No session has this key, or it is over.")
            body = await read_body(request)
            session.check_fits(bytes_of_json=len(body))
            return await handler(session, request, body)
        except RefusedRequest as refusal:
            return refusal.response(form)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        except EpisodeError as error:
            return _refusal(error).response(form)

    return answer


async def _not_served(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    routes: list[Any] = request.app.routes
    named = ", ".join(sorted({f"{min(route.methods)} {route.path.removeprefix('/s/{key}')}" for route in routes}))
    words = f"There is no {request.method} at this path. Served are {named}."
    form = MESSAGES.refusal if "/v1/messages" in request.url.path else answers.refusal
    response = RefusedRequest(error.status_code, "unknown_route", words).response(form)
    response.headers.update(error.headers or {})
    return response


def _key(request: Request) -> str:
    if (key := request.path_params.get("key")) is not None:
        return str(key)
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    # An SDK always sends an Authorization of its own, beside what it is told to send.
    return request.headers.get("x-session-id") or bearer or request.headers.get("x-api-key", "")


async def read_body(request: Request, most_bytes: int | None = None) -> bytes:
    """The body. Raises RefusedRequest for one that is too large."""
    body, limit = bytearray(), MAX_BODY_BYTES if most_bytes is None else most_bytes
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise RefusedRequest(413, "body_too_large", f"A request has at most {limit} bytes.")
    return bytes(body)


def _decoded(body: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    """What is asked of a route of tokens."""
    try:
        wanted = decoder.decode(body)
        asked: Any = wanted
        getattr(asked, "sampling_params", asked).check()
        if asked.stream:
            raise ValueError("stream is not understood here: ask without it, the answer comes whole")
    except (ValueError, RecursionError) as error:
        raise _not_understood(error) from None
    return wanted


def _not_understood(error: Exception) -> RefusedRequest:
    return RefusedRequest(400, _CODES.get(type(error), "invalid_request"), str(error) or "nested too deeply")


async def _asked_tokens(session: Session, request: Request, token_ids: list[int], wishes: Wishes) -> Asked:
    if not token_ids:
        raise RefusedRequest(400, "invalid_prompt", "the prompt has no tokens")
    asking = session.ask_tokens(token_ids, n=wishes.replies, max_tokens=wishes.most_tokens, stops=wishes.stops)
    asked = await unless_gone(request, asking)
    session.deliver(asked)
    return asked


def _refusal(error: EpisodeError) -> RefusedRequest:
    kind = next(kind for kind in _KINDS if isinstance(error, kind.error))
    return RefusedRequest(kind.status, kind.code, str(error))


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
