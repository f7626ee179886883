"""The one way of an HTTP request past Django's request machinery, whichever protocol it speaks.

    route ─► read: bounded, admitted, in time ─► one hop to a thread: respond, word what was refused, encode ─► send
      │        │                                     │ Later
      │        │                                     ├─ look again every POLL_S, on the event loop, until it is there
      │        │                                     │ Large
      │        │                                     └─ the same in the one thread for what takes much memory
      └────────┴─ Elsewhere: the application behind the door, usually Django, which receives the request from its start

Middleware, sessions and DRF cost several times what storing a group does. What differs between protocols is a `Door`:
its addresses, whom they are open to, and the words of its answers.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

from rollouts.doors.admission import LARGE_BYTES, admitted
from rollouts.doors.compression import Large
from rollouts.doors.messages import (
    Answer,
    Application,
    Disconnected,
    Elsewhere,
    Later,
    Message,
    Receive,
    Request,
    Scope,
    Send,
)
from rollouts.doors.reading import Body
from rollouts.doors.sending import send_answer
from rollouts.doors.threads import in_large_thread, in_thread
from rollouts.errors import TooSlow

BODY_DEADLINE_S = 300.0
POLL_S = 0.05
"""How often a waiting fetch looks again. Its query is two index scans; a step takes seconds."""

NO_SNIFFING = (b"x-content-type-options", b"nosniff")


class Route(NamedTuple):
    """What answers a request. Both are called in a thread, and raise what the door has words for, or Elsewhere."""

    check: Callable[[Request], object]
    """Whether the sender may send it; asked before all of a large body is read. It may not raise Elsewhere."""
    respond: Callable[[Request], Answer | Later]
    """It may raise Large, unless the request is known to be, and is called again where there is room."""


class Door(Protocol):
    """One protocol."""

    def route(self, request: Request) -> Route | Answer:
        """Who answers a request of which only the head is known. Raises Elsewhere."""

    def check_elsewhere(self, request: Request) -> None:
        """In a thread: whether the sender of a large body for elsewhere is anybody. Raises what `refusal` words."""

    def refusal(self, error: Exception, request: Request) -> Answer:
        """What an error is answered with. Raises the error if the protocol has no words for it."""

    def begin(self, answer: Answer, request: Request) -> tuple[Message, bytes]:
        """The first message of an answer, and the body that belongs to it."""


Made = tuple[Message, bytes, Answer]
"""The first message of an answer, the body as it is sent, and the answer itself."""


def application(door: Door, otherwise: Application | None = None) -> Application:
    """An ASGI application that answers what the door does, and gives the rest to ``otherwise``."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request.of(scope)
        body = Body(request, receive)
        try:
            made = await _answer(door, request, body)
        except Disconnected:
            return
        except Elsewhere:
            assert otherwise is not None, "a door that sends requests elsewhere has somewhere to send them"
            body.ask_first(partial(in_thread, door.check_elsewhere, request))
            try:
                return await otherwise(scope, body.receive, send)
            except Exception as error:
                if error is not body.refusal:
                    raise
                made = _refused(door, request, error)
        except Exception as error:  # noqa: BLE001 - what the door has no words for is raised again
            made = _refused(door, request, error)
        start, content, answer = made
        start["headers"].append(NO_SNIFFING)
        await send_answer(start, content, answer.outgoing, receive, send)

    return serve


async def _answer(door: Door, request: Request, body: Body) -> Made:
    route = door.route(request)
    if isinstance(route, Answer):
        return *door.begin(route, request), route
    with admitted() as ticket:
        try:
            async with asyncio.timeout(BODY_DEADLINE_S):
                body.ask_first(partial(in_thread, route.check, request))
                content = await body.read(ticket)
        except TimeoutError:
            raise TooSlow from None
        ticket.complete()
        request = replace(request, body=content, is_large=ticket.size > LARGE_BYTES)
        try:
            made = await (in_large_thread if request.is_large else in_thread)(_make, door, route, request)
        except Large:
            made = await in_large_thread(_make, door, route, replace(request, is_large=True))
    if isinstance(made, Later):  # which holds neither a thread nor a place among those that wait for one
        answer = await until(made, in_thread)
        return *door.begin(answer, request), answer
    return made


def _make(door: Door, route: Route, request: Request) -> Made | Later:
    """In a thread: everything that takes time."""
    try:
        answer = route.respond(request)
        if isinstance(answer, Later):
            later, found = answer, answer.look()
            if found is None:
                return later
            answer = found
    except (Elsewhere, Large):
        raise
    except Exception as error:  # noqa: BLE001 - what the door has no words for is raised again
        return _refused(door, request, error)
    return *door.begin(answer, request), answer


def _refused(door: Door, request: Request, error: Exception) -> Made:
    answer = door.refusal(error, request)
    return *door.begin(answer, request), answer


async def until(later: Later, hop: Callable[[Callable[[], Answer | None]], Awaitable[Answer | None]]) -> Answer:
    """The answer once it is there, or what is answered otherwise. ``hop`` calls the look in a thread."""
    while time.monotonic() < later.deadline:
        await asyncio.sleep(POLL_S)
        if (answer := await hop(later.look)) is not None:
            return answer
    return later.otherwise
