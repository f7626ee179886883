"""Whoever is refused much waits: refusing costs something too, and each sender may cause only so much of it.

    request ──► whose? of a credential that lately opened something, from wherever; else of a network, or of a sandbox
                  │ in debt: one at a time, each when those before are paid for
                  ▼
                application ──► refused? what it cost is the sender's debt; REFUSALS_SHARE of a core pays it off

Good requests cost their sender nothing, so the data path is as fast as it is. In memory, by process, on the event loop.
"""

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from http import HTTPStatus
from math import ceil

from django.conf import settings
from django.http import parse_cookie

from controlplane.home import FOR_RUNS
from rollouts import guesses
from rollouts.consumers import FORBIDDEN
from rollouts.doors.atropos.app import AtroposDoor
from rollouts.doors.atropos.call import PREFIX, split_path
from rollouts.doors.kernel import NO_SNIFFING, Door
from rollouts.doors.messages import Application, Message, Receive, Request, Scope, Send
from rollouts.doors.native.hot import NativeDoor
from rollouts.doors.threads import Spent, spending
from rollouts.errors import TooManyRefusals

BURST_S = 0.1
"""CPU seconds of refusals that nobody waits for: some dozens of mistyped addresses."""
MAX_DEBT_S = 1.0
REQUEST_S, SOCKET_S = 0.002, 0.005
"""What a request costs the event loop, and a socket everything, at least."""
BYTE_S = 1.5e-9
"""Of a body that is read."""
HELD_S = 10.0
"""Whoever would wait longer, or has MAX_HELD requests waiting already, is told to come again."""
MAX_HELD = 32
MAX_REMEMBERED = 10_000
PASSING = frozenset({HTTPStatus.CONFLICT, HTTPStatus.GONE, HTTPStatus.TOO_MANY_REQUESTS})
"""What somebody with a good credential is told in the course of things."""
SHOWN_AGAIN = ("/login/", "/admin/")
"""Pages of Django's, which answer 200 to a form that was not right and show it again. Ours say 422."""

CHECKS = ("/runs/new/check/", "/runs/new/make-model/")
CHECK_PART = 0.2
"""Asked while somebody types, who never waits for it then. A program that asks as fast as it can does."""
PROGRAMS = ("/api/", PREFIX)
"""Whose paths programs ask, not people."""

_ATROPOS: Door = AtroposDoor()
_NATIVE: Door = NativeDoor()


@dataclass(slots=True)
class _Sender:
    debt_s: float = 0.0
    """As of ``at``, monotonic."""
    at: float = 0.0
    held: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def wait_s(self) -> float:
        """Until its next request may begin."""
        return max(0.0, (self._debt_now() - BURST_S) / _share())

    def charge(self, cost_s: float) -> None:
        self.debt_s = min(self._debt_now() + cost_s, MAX_DEBT_S)
        self.at = time.monotonic()

    def _debt_now(self) -> float:
        return max(0.0, self.debt_s - _share() * (time.monotonic() - self.at))


def _share() -> float:
    share: float = settings.REFUSALS_SHARE
    return share


_senders: "OrderedDict[tuple[str, str], _Sender]" = OrderedDict()
"""Those who were refused something; of more than MAX_REMEMBERED the oldest are forgotten."""


def paced(application: Application) -> Application:
    """The application, for HTTP or for sockets, which begins with a request when its sender's turn has come."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        sender = _senders.get(_whose(scope)) if _senders else None
        if sender is None or not sender.wait_s():
            await _charged(application, scope, receive, send)
            return
        if sender.held >= MAX_HELD:
            await _refuse(scope, receive, send, sender.wait_s())
            return
        sender.held += 1
        try:
            async with asyncio.timeout(HELD_S) as patience, sender.turn:
                await asyncio.sleep(sender.wait_s())
                patience.reschedule(None)
                await _charged(application, scope, receive, send)
        except TimeoutError:
            await _refuse(scope, receive, send, sender.wait_s())
        finally:
            sender.held -= 1

    return serve


def forget() -> None:
    """Begin anew, as a process does."""
    _senders.clear()


async def _charged(application: Application, scope: Scope, receive: Receive, send: Send) -> None:
    spent, status, body_bytes, last = Spent(), 0, 0, ""

    async def count(message: Message) -> None:
        nonlocal status, last
        before, last = last, message["type"]
        if last in {"http.response.start", "websocket.http.response.start"}:
            status = message["status"]
        elif last == "websocket.accept":
            status = HTTPStatus.SWITCHING_PROTOCOLS
        elif last == "websocket.close" and before == "websocket.accept" and message.get("code") == FORBIDDEN:
            status = HTTPStatus.FORBIDDEN  # opened to be told so, and for nothing else
        await send(message)

    async def read() -> Message:
        nonlocal body_bytes
        message = await receive()
        body_bytes += len(message.get("body") or b"")
        return message

    with spending(spent):
        try:
            await application(scope, read, count)
        finally:
            if not _is_free(scope, status):
                whose = _whose(scope)
                if part := _part_charged(scope, status, is_known=bool(whose[0])):
                    least_s = REQUEST_S if scope["type"] == "http" else SOCKET_S
                    _sender(whose).charge(part * (least_s + spent.cpu_s + BYTE_S * body_bytes))


def _is_free(scope: Scope, status: int) -> bool:
    """Whether nobody pays for it, whoever sent it: a socket that was opened, or what a program asked was answered."""
    if scope["type"] == "websocket":
        return status == HTTPStatus.SWITCHING_PROTOCOLS
    return bool(status) and not 400 <= status < 500 and scope["path"].startswith(PROGRAMS)


def _part_charged(scope: Scope, status: int, *, is_known: bool) -> float:
    """How much of what is not free the sender pays: all, where nothing came of it, or for who is not signed in."""
    if scope["type"] == "websocket":
        return 1.0
    if not status:  # gone before the answer: whoever has a key may have waited in vain
        return float(not is_known)
    if 400 <= status < 500:
        return float(not (is_known and status in PASSING))
    if scope["method"] == "POST" and status == HTTPStatus.OK:
        if scope["path"].startswith(CHECKS):
            return CHECK_PART if is_known else 1.0
        if scope["path"].startswith(SHOWN_AGAIN):
            return 1.0
    return float(not is_known)


def _whose(scope: Scope) -> tuple[str, str]:
    """(credential, network or sandbox): a credential that opened something lately, from wherever, or else the place."""
    credential = _credential(scope)
    if credential and guesses.is_known(credential):
        return credential, ""
    # All runs come over one socket. What one of them makes up, tokens for example, may not be held against another.
    sandbox = scope.get("state", {}).get(FOR_RUNS)
    return "", sandbox or guesses.network((scope.get("client") or ("",))[0])


def _credential(scope: Scope) -> str:
    if scope["path"].startswith(PREFIX):
        return split_path(scope["path"])[0]
    headers: dict[bytes, bytes] = dict(scope["headers"])
    if authorization := headers.get(b"authorization"):
        return authorization.partition(b" ")[2].decode("latin-1")
    if cookies := headers.get(b"cookie"):
        return parse_cookie(cookies.decode("latin-1")).get(settings.SESSION_COOKIE_NAME, "")
    return ""


def _sender(whose: tuple[str, str]) -> _Sender:
    sender = _senders.setdefault(whose, _Sender())
    _senders.move_to_end(whose)
    while len(_senders) > MAX_REMEMBERED:
        _senders.popitem(last=False)
    return sender


async def _refuse(scope: Scope, receive: Receive, send: Send, wait_s: float) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
        return
    again_s = ceil(wait_s) or 1
    error = TooManyRefusals(f"Too much of what came from here was refused lately. Try again in {again_s} s.")
    error.retry_after_s = again_s
    door = _ATROPOS if scope["path"].startswith(PREFIX) else _NATIVE
    request = Request.of(scope)
    start, body = door.begin(door.refusal(error, request), request)
    start["headers"] += [NO_SNIFFING, (b"connection", b"close")]
    await send(start)
    await send({"type": "http.response.body", "body": body})
