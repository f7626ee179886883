"""The express lane of the native API: submitting groups and fetching batches, without Django's request machinery.

    POST /runs/<key>/groups, GET /runs/<key>/batches/<step>, with a token ─► one hop to a thread ─► the same functions
    everything else, and whatever is not allowed ───────────────────────────► Django, which says why

Middleware, sessions and DRF cost several times what storing a group does. What a request may do is decided by one query
that holds all of `native.access`; errors get the words of `native.problems`. The views of the same addresses serve
people with a session, and describe the API.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from hmac import compare_digest
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import msgspec
from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from knox.crypto import hash_token
from knox.settings import CONSTANTS

from rollouts.crashpoints import CrashPoint, crash_point
from rollouts.doors.native import groups, problems, trainer
from rollouts.doors.native.access import ROLE_FOR
from rollouts.doors.threads import in_thread
from rollouts.models import Role, Run, Scope
from rollouts.services import batches
from rollouts.sql import binary_cursor, load
from trainers.wire import EPOCH_HEADER, MSGPACK

UNASKED_BYTES = 256 * 1024
"""So much of a body is taken before it is asked who sends it: a hop to a thread of its own would cost more."""
PATH = re.compile(r"/api/v1/runs/(?P<key>[-\w]{1,16})/(?:(?P<groups>groups)|batches/(?P<step>\d{1,9}))")
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]


class Answer(NamedTuple):
    """What is sent back."""

    status: int
    headers: dict[str, str]
    body: bytes


class Pass(NamedTuple):
    """What a token opens."""

    run: Run
    actor: str


class Express:
    """An ASGI application that answers what it can, and gives the rest to another."""

    def __init__(self, otherwise: Application) -> None:
        self._otherwise = otherwise

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one HTTP request, whose body is refused beyond the limit before more of it is taken."""
        try:
            await self._answer(scope, _bounded(scope, receive), send)
        except RequestDataTooBig as error:
            await _write(_refusal(error), send)

    async def _answer(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        found = PATH.fullmatch(scope["path"])
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        kind, _, token = headers.get("authorization", "").partition(" ")
        wanted = ("POST" if found["groups"] else "GET") if found else ""
        if found is None or scope["method"] != wanted or kind.lower() != "token":
            return await self._otherwise(scope, receive, send)
        seen: list[Message] = []
        if found["groups"]:
            try:
                seen = await _read(receive, partial(in_thread, _open, found["key"], token, Scope.SUBMIT))
            except Exception as error:  # noqa: BLE001 - what is not a refusal is raised again
                return await _write(_refusal(error), send)
            if not seen:
                return None
            answer = None
            if not seen[-1].get("more_body", False):
                body = seen[0]["body"] if len(seen) == 1 else b"".join(message.get("body", b"") for message in seen)
                answer = await in_thread(_submit, found["key"], token, headers, body)
        else:
            query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
            answer = await _fetch(found["key"], token, int(found["step"]), headers, query)
        if answer is None:
            return await self._otherwise(scope, _again(seen, receive), send)
        await _write(answer, send)


def _open(key: str, token: str, scope: Scope) -> Pass | None:
    """What the token opens, or None: then Django finds out why not."""
    roles = [role.value for role in Role if role.includes(ROLE_FOR[scope])]
    with binary_cursor() as cursor:
        cursor.execute(
            load("express_run"),
            {"run": key, "token_key": token[: CONSTANTS.TOKEN_KEY_LENGTH], "scope": scope.value, "roles": roles},
        )
        rows = cursor.fetchall()
    for digest, name, run_id in rows:
        if compare_digest(digest, hash_token(token)):
            return Pass(_run(run_id), f"api:{name}")
    return None


@lru_cache(maxsize=256)
def _run(run_id: int) -> Run:
    """A run, for what never changes of it: services read the rest anew."""
    return Run.objects.get(pk=run_id)


def _submit(key: str, token: str, headers: dict[str, str], body: bytes) -> Answer | None:
    try:
        if (opened := _open(key, token, Scope.SUBMIT)) is None:
            return None
        content_type, idempotency_key = headers.get("content-type", ""), headers.get("idempotency-key")
        stored = groups.submit(opened.run, content_type, body, idempotency_key, actor=opened.actor)
    except Exception as error:  # noqa: BLE001 - what is not a refusal is raised again
        return _refusal(error)
    return Answer(
        stored.status, {"content-type": "application/json", **stored.headers}, msgspec.json.encode(stored.out)
    )


async def _fetch(
    key: str, token: str, step: int, headers: dict[str, str], query: dict[str, list[str]]
) -> Answer | None:
    """Waits on the event loop, not in a thread: trainers that wait take nothing from those that submit."""
    try:
        if (opened := await in_thread(_open, key, token, Scope.TRAIN)) is None:
            return None
        epoch = trainer.parse_epoch(headers.get(EPOCH_HEADER.lower(), ""))
        wait_s = trainer.parse_wait(query.get("wait_s", ["0"])[-1])
        deadline = time.monotonic() + wait_s
        while (delivery := await in_thread(batches.fetch, opened.run, epoch=epoch, step=step)) is None:
            if time.monotonic() >= deadline:
                return Answer(204, {}, b"")
            await asyncio.sleep(trainer.POLL_S)
    except Exception as error:  # noqa: BLE001 - what is not a refusal is raised again
        return _refusal(error)
    return Answer(200, {"content-type": MSGPACK, **trainer.delivery_headers(delivery)}, delivery.body)


def _refusal(error: Exception) -> Answer:
    """The problem that the error is. Raises the error if it is one of ours."""
    described = problems.describe(error)
    if described is None:
        raise error
    status, headers, body = described
    return Answer(status, {"content-type": problems.PROBLEM_JSON, **headers}, msgspec.json.encode(body))


def _bounded(scope: dict[str, Any], receive: Receive) -> Receive:
    """A ``receive`` that raises RequestDataTooBig, at once when the length is declared."""
    limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    left = limit
    declared = dict(scope["headers"]).get(b"content-length", b"")

    async def bounded() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0 or (declared.isdigit() and (len(declared) > 18 or int(declared) > limit)):
            raise RequestDataTooBig
        return message

    return bounded


async def _read(receive: Receive, may_send: Callable[[], Awaitable[object]]) -> list[Message]:
    """The messages of the body; none when the client went away. Not all of a large one that nobody may send."""
    seen: list[Message] = []
    size, is_known = 0, False
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return []
        seen.append(message)
        size += len(message.get("body", b""))
        if not message.get("more_body", False):
            return seen
        if size > UNASKED_BYTES and not is_known:
            if not await may_send():
                return seen
            is_known = True


def _again(seen: list[Message], receive: Receive) -> Receive:
    """A ``receive`` that begins with messages that were received already."""
    waiting = iter(seen)

    async def again() -> Message:
        for message in waiting:
            return message
        return await receive()

    return again


async def _write(answer: Answer, send: Send) -> None:
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers.items()]
    headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    half = len(answer.body) // 2 if answer.status == 200 else 0
    if half:
        await send({"type": "http.response.body", "body": answer.body[:half], "more_body": True})
        await asyncio.sleep(0)  # what was sent so far leaves when the loop comes round
        crash_point(CrashPoint.MID_BODY)
    await send({"type": "http.response.body", "body": answer.body[half:]})
