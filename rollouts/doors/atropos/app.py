"""The door to unmodified clients of Atropos: which path is answered by what, and what becomes of what goes wrong."""

import logging
import re
import zlib
from collections.abc import Callable
from functools import partial

from django.db import InterfaceError, OperationalError

from rollouts import full_disk, guesses
from rollouts.doors import kernel
from rollouts.doors.atropos import data, description, environments, lookup, trainers
from rollouts.doors.atropos.call import PREFIX, Call, split_path
from rollouts.doors.atropos.words import ok, problem, text, try_again, worded
from rollouts.doors.compression import deflated
from rollouts.doors.kernel import Route
from rollouts.doors.messages import Answer, Message, Request
from rollouts.errors import (
    ControlPlaneError,
    Invalid,
    NotFound,
    QueueFull,
    StateConflict,
    TooLarge,
    TooManyFailures,
    Unavailable,
)

log = logging.getLogger(__name__)

KEY = re.compile("[A-Za-z0-9_-]{20,64}")
NOT_FOUND = problem(404, "Not Found")
COMPRESS_FROM_BYTES = 1000
Handler = Callable[[Call], Answer]


def root(call: Call) -> Answer:
    """`GET /`"""
    lookup.find(call.key)
    return ok({"message": "AtroposLib API"})


HANDLERS: dict[str, dict[str, Handler]] = {
    "": {"GET": root},
    "register": {"POST": trainers.register},
    "register-env": {"POST": environments.register_env},
    "disconnect-env": {"POST": environments.disconnect_env},
    "wandb_info": {"GET": environments.wandb_info},
    "info": {"GET": environments.info},
    "batch": {"GET": trainers.batch},
    "latest_example": {"GET": data.latest_example},
    "scored_data": {"POST": data.scored_data},
    "scored_data_list": {"POST": data.scored_data_list},
    "status": {"GET": environments.status},
    "status-env": {"GET": environments.status_env},
    "reset_data": {"GET": trainers.reset_by_get, "POST": trainers.reset_data},
    "openapi.json": {"GET": description.openapi},
    "docs": {"GET": description.docs},
    "redoc": {"GET": description.docs},
}


class AtroposDoor:
    """What is under PREFIX. A `kernel.Door`."""

    def route(self, request: Request) -> Route | Answer:
        """The handler of the path and method; a whole answer for those that nobody handles."""
        if request.method == "OPTIONS" and {b"access-control-request-method", b"origin"} <= request.headers.keys():
            return _preflight(request)
        key, path = split_path(request.path)
        if not KEY.fullmatch(key):
            return NOT_FOUND
        methods = HANDLERS.get(path)
        if methods is None:
            return _without_slash(request) if path.endswith("/") and path.rstrip("/") in HANDLERS else NOT_FOUND
        if (handler := methods.get(request.method)) is None:
            return problem(405, "Method Not Allowed", {"Allow": ", ".join(methods)})
        return Route(check=_check_key, respond=partial(_respond, handler))

    def check_elsewhere(self, request: Request) -> None:
        """Nothing of this door goes elsewhere."""

    def refusal(self, error: Exception, request: Request) -> Answer:
        """An error in the words of FastAPI. One of ours is logged, and answered without a word about it."""
        match error:
            case Invalid():
                return problem(422, [worded(fault) for fault in error.faults])
            case StateConflict() | QueueFull() | Unavailable():  # it passes, and only what is answered 5xx is repeated
                return try_again(error.message)
            case TooManyFailures():
                return problem(error.status, error.message, {"Retry-After": str(error.retry_after_s)})
            case TooLarge():
                return problem(413, "The body is larger than this server takes. Send fewer groups at once.")
            case ControlPlaneError():
                return problem(error.status, error.message)
            case zlib.error():
                return text("Invalid gzip payload", 400)
            case RecursionError():
                return problem(400, "There was an error parsing the body")
            case OperationalError() | InterfaceError() if full := full_disk.explain(error):
                return try_again(full)
            case OperationalError() | InterfaceError():
                log.warning("the database did not answer", exc_info=error)
                return try_again("The database does not answer. Send it again in a second.")
            case _:
                log.error("an error of ours", exc_info=error)
                return text("Internal Server Error", 500)

    def begin(self, answer: Answer, request: Request) -> tuple[Message, bytes]:
        """The first message of an answer, and its body: compressed if that is asked for and pays."""
        body, varies = answer.body, []
        headers = [
            (b"content-type", answer.content_type.encode()),
            (b"cache-control", b"no-store"),  # some GETs change state: nothing on the way may answer for us
            *((name.lower().encode(), value.encode()) for name, value in answer.headers.items()),
        ]
        if len(body) >= COMPRESS_FROM_BYTES:
            varies.append(b"Accept-Encoding")
            if b"gzip" in request.headers.get(b"accept-encoding", b""):
                body = deflated(body)
                headers.append((b"content-encoding", b"gzip"))
        if (origin := request.headers.get(b"origin")) is not None:
            varies.append(b"Origin")
            headers += [(b"access-control-allow-origin", origin), (b"access-control-allow-credentials", b"true")]
        if varies:
            headers.append((b"vary", b", ".join(varies)))
        headers.append((b"content-length", str(len(body)).encode()))
        return {"type": "http.response.start", "status": answer.status, "headers": headers}, body


application = kernel.application(AtroposDoor())


def _respond(handler: Handler, request: Request) -> Answer:
    _check_key(request)  # before its body is inflated and decoded, which may take a second
    return handler(Call.of(request))


def _check_key(request: Request) -> None:
    """Raise NotFound, Forbidden or TooManyFailures unless the path has the key of an address that opens a run."""
    key = split_path(request.path)[0]
    guesses.check(request.address, key)
    try:
        lookup.check_key(key)
    except NotFound:
        guesses.failed(request.address)
        raise
    guesses.opened(key)


def _without_slash(request: Request) -> Answer:
    """A redirection, relative to the host, so that it is right behind every proxy."""
    key, path = split_path(request.path)
    query = f"?{request.query}" if request.query else ""
    return text("", 307, {"Location": f"{PREFIX}{key}/{path.rstrip('/')}{query}"})


def _preflight(request: Request) -> Answer:
    """What a browser asks before it sends a request from a page of another origin: all is allowed, as with Atropos.

    No cookie means anything here: whoever knows the key may do everything, and nobody else anything.
    """
    allowed = {
        "Access-Control-Allow-Methods": "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT",
        "Access-Control-Max-Age": "600",
    }
    if b"access-control-request-headers" in request.headers:
        allowed["Access-Control-Allow-Headers"] = request.header(b"access-control-request-headers")
    return text("OK", 200, allowed)
