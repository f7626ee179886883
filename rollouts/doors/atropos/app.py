"""The ASGI application: which path is answered by what, and what becomes of whatever goes wrong.

/atropos/<key>/<path> ─► body, in the event loop ─► one hop: inflate, decode, store, encode, compress ─► answer
"""

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from django.db import InterfaceError, OperationalError

from rollouts.doors.atropos import data, description, environments, lookup, trainers, transport
from rollouts.doors.atropos.admission import admitted
from rollouts.doors.atropos.responses import TEXT, Refused, Request, Response, fault, ok, problem, text, try_again
from rollouts.doors.atropos.sending import Broken, send_parcel
from rollouts.doors.atropos.trainers import Shipment
from rollouts.doors.atropos.transport import Disconnected, Headers, Receive, Scope, Send
from rollouts.doors.threads import in_thread
from rollouts.errors import ControlPlaneError, Invalid, QueueFull, StateConflict
from rollouts.services.deliveries import Parcel

log = logging.getLogger(__name__)

PREFIX = "/atropos/"
KEY = re.compile("[A-Za-z0-9_-]{20,64}")
NOT_FOUND = problem(404, "Not Found")
BODY_DEADLINE_S = 300.0
Handler = Callable[[Request], Response | Shipment]
Answer = tuple[dict[str, Any], bytes, Parcel | None]
"""First message, body, and what is in it if it is a batch."""


def root(request: Request) -> Response:
    """`GET /`"""
    lookup.find(request.key)
    return ok({"message": "AtroposLib API"})


ROUTES: dict[str, dict[str, Handler]] = {
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
    "reset_data": {"GET": trainers.reset_data},
    "openapi.json": {"GET": description.openapi},
    "docs": {"GET": description.docs},
    "redoc": {"GET": description.docs},
}


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one HTTP request under PREFIX."""
    headers: Headers = dict(scope["headers"])
    try:
        handler = _route(scope, headers)
        with admitted() as ticket:
            async with asyncio.timeout(BODY_DEADLINE_S):
                body = await transport.read_body(headers, receive, ticket, partial(in_thread, _check_known, scope))
            ticket.complete()
            start, body, parcel = await in_thread(_answer, handler, headers, _request(scope, headers, body))
            if parcel is None:
                await send(start)
                await send({"type": "http.response.body", "body": body})
            else:
                await send_parcel(start, body, parcel, receive, send)
    except Refused as refused:
        await transport.write(refused.response, headers, send)
    except Disconnected:
        return
    except TimeoutError:
        await transport.write(problem(408, "The body did not come in time."), headers, send)
    except Broken:  # the server closes a connection whose answer is not complete
        log.info("a batch did not arrive whole: it is given to whoever asks next")


def _route(scope: Scope, headers: Headers) -> Handler:
    """Who answers. Raises Refused for paths and methods that nobody does."""
    if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers and b"origin" in headers:
        raise Refused(transport.preflight(headers))
    key, _, path = scope["path"].removeprefix(PREFIX).partition("/")
    if not KEY.fullmatch(key):
        raise Refused(NOT_FOUND)
    methods = ROUTES.get(path)
    if methods is None:
        if path.endswith("/") and path.rstrip("/") in ROUTES:
            raise Refused(Response(b"", 307, TEXT, {"Location": _without_slash(scope)}))
        raise Refused(NOT_FOUND)
    if (handler := methods.get(scope["method"])) is None:
        raise Refused(problem(405, "Method Not Allowed", {"Allow": ", ".join(methods)}))
    return handler


def _without_slash(scope: Scope) -> str:
    """Relative to the host, so that it is right behind every proxy."""
    key, _, path = scope["path"].removeprefix(PREFIX).partition("/")
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{PREFIX}{key}/{path.rstrip('/')}" + (f"?{query}" if query else "")


def _check_known(scope: Scope) -> None:
    """Raise Refused with what the root of this address answers, unless it is well. In a thread."""
    answer = _respond(root, {}, _request(scope, {}, b""))
    if isinstance(answer, Response) and answer.status != 200:
        raise Refused(answer)


def _request(scope: Scope, headers: Headers, body: bytes) -> Request:
    return Request(
        key=scope["path"].removeprefix(PREFIX).partition("/")[0],
        query=scope.get("query_string", b"").decode("latin-1"),
        content_type=headers.get(b"content-type", b"").decode("latin-1"),
        body=body,
    )


def _answer(handler: Handler, headers: Headers, request: Request) -> Answer:
    """In a thread: everything that takes time."""
    answer = _respond(handler, headers, request)
    if isinstance(answer, Shipment):
        return *transport.begin(answer.response, headers), answer.parcel
    return *transport.begin(answer, headers), None


def _respond(handler: Handler, headers: Headers, request: Request) -> Response | Shipment:
    try:
        return handler(replace(request, body=transport.inflated(headers, request.body)))
    except Refused as refused:
        return refused.response
    except Invalid as error:
        return problem(422, [fault("value_error", (path,), why) for path, why in error.fields.items()])
    except (StateConflict, QueueFull) as error:  # it passes, and clients repeat only what is answered with 5xx
        return try_again(error.message)
    except ControlPlaneError as error:
        return problem(error.status, error.message)
    except RecursionError:
        return problem(400, "There was an error parsing the body")
    except (OperationalError, InterfaceError):
        log.warning("the database did not answer", exc_info=True)
        return try_again("The database does not answer. Send it again in a second.")
    except Exception:
        log.exception("an error of ours")
        return text("Internal Server Error", 500)
