"""One websocket per page. It says only "run R changed"; the page pulls what it shows.

A lost message therefore cannot lie, and there is nothing to replay after a reconnect. A browser subscribes to runs it
may see; messages of one run are merged to at most one per INTERVAL_S.

    client -> {"subscribe": ["<run key>", ...]} or {"subscribe": ["*"]}
    server -> {"run": "<run key>"}, at once for every run subscribed to, then whenever it changed
"""

import asyncio
import json
import logging
import time
from collections import Counter
from typing import Any, NoReturn

from channels.db import database_sync_to_async
from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer
from django.contrib.auth.models import User
from django.db import InterfaceError, OperationalError

from rollouts import guesses
from rollouts.bell import ALL_RUNS, SEND_DEADLINE_S, group_of
from rollouts.selectors import runs

log = logging.getLogger(__name__)

INTERVAL_S = 0.25
MAX_SUBSCRIPTIONS = 100
BELIEVED_FOR_S = 30.0
"""How long it is believed that session and rights are what they were: a socket may outlive account and membership."""
SIGNED_OUT = "The session has ended."
MAX_SOCKETS = 20
"""Of one user in this process."""
CROWDED = f"Not live: {MAX_SOCKETS} pages of yours are open already"
UNSEEN = "You may not see this run any more."
FORBIDDEN = 4403
UNREADABLE = 4400
TOO_MANY = 4429


_open_sockets: Counter[int] = Counter()
"""User id -> sockets in this process. Of the event loop only."""


class ChangesConsumer(AsyncWebsocketConsumer):
    """Forwards the bell of the runs a signed-in user subscribed to."""

    async def __call__(self, *connection: Any) -> None:
        try:
            await super().__call__(*connection)
        finally:
            self._leave_place()

    async def connect(self) -> None:
        self.joined: set[str] = set()
        self.runs: set[str] = set()
        """Keys of the runs that were asked for by name, and seen."""
        self.asked = 0
        self.visible: dict[str, tuple[float, bool]] = {}
        """Run key -> (asked at, whether the user may see it)."""
        self.pending: set[str] = set()
        self.sender: asyncio.Task[None] | None = None
        self.place: int | None = None
        """The user whose place it takes."""
        user, session_key = self.scope["user"], self.scope["session"].session_key or ""
        if not user.is_authenticated:
            guesses.failed((self.scope.get("client") or ("",))[0])
            await self._refuse(FORBIDDEN)
        guesses.opened(session_key)
        if _open_sockets[user.pk] >= MAX_SOCKETS:
            await self._refuse(TOO_MANY, CROWDED)
        self.place = user.pk
        _open_sockets[user.pk] += 1
        await self.accept()
        self.sender = asyncio.create_task(self._send_pending())

    async def _refuse(self, code: int, reason: str = "") -> NoReturn:
        """Close the socket as soon as it is open, and listen no more: whatever is said on it meets nobody.

        A page is not told why a socket never opened (1006, as if the network were away), and would try for ever.
        """
        await self.accept()
        await self.close(code, reason)
        raise StopConsumer

    async def disconnect(self, code: int) -> None:
        if self.sender is not None:
            self.sender.cancel()
        try:
            async with asyncio.timeout(SEND_DEADLINE_S):
                for group in self.joined:
                    await self.channel_layer.group_discard(group, self.channel_name)
        except Exception as error:  # noqa: BLE001 - Redis is away, and its connection with the subscriptions gone
            log.info("a page left without unsubscribing (%s: %s)", type(error).__name__, error)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        wanted = _subscription(text_data)
        if wanted is None:
            await self.close(UNREADABLE)
            return
        self.asked += len(wanted)
        if self.asked > MAX_SUBSCRIPTIONS:
            await self.close(TOO_MANY)
            return
        visible = await database_sync_to_async(self._query_visible, thread_sensitive=False)(set(wanted) - {"*"})
        groups = {group_of(key) for key in visible} | ({ALL_RUNS} if "*" in wanted else set())
        for group in groups - self.joined:
            await self.channel_layer.group_add(group, self.channel_name)
            self.joined.add(group)
        # What changed between the rendering of the page and its subscription.
        self.pending |= visible
        self.runs |= visible

    def _leave_place(self) -> None:
        place, self.place = getattr(self, "place", None), None
        if place is not None:
            _open_sockets[place] -= 1
            if not _open_sockets[place]:
                del _open_sockets[place]

    async def bell(self, message: dict[str, Any]) -> None:
        """A run changed. Through the group of all runs come also those of other projects."""
        key = message["run"]
        asked_at, is_visible = self.visible.get(key, (0.0, False))
        if time.monotonic() - asked_at > BELIEVED_FOR_S or asked_at == 0.0:
            is_visible = key in await database_sync_to_async(self._query_visible, thread_sensitive=False)({key})
        if is_visible:
            self.pending.add(key)

    def _query_visible(self, keys: set[str]) -> set[str]:
        """The keys of runs that the user may see."""
        if not keys:
            return set()
        found = set(runs.for_user(self.scope["user"]).filter(key__in=keys).values_list("key", flat=True))
        now = time.monotonic()
        self.visible |= {key: (now, key in found) for key in keys}
        return found

    def _refusal(self) -> str:
        """Why this page may not listen any more; empty as long as it may. Takes the user's rights of now.

        Session, account and password are what they were, and every run that was asked for is still seen.
        """
        session, known = self.scope["session"], self.scope["user"]
        user = User.objects.filter(pk=known.pk, is_active=True).first()
        # `session.exists` would find one that has expired, too.
        if user is None or user.password != known.password or not session.load():
            return SIGNED_OUT
        self.scope["user"] = user
        self.visible = {}
        return "" if self._query_visible(self.runs) == self.runs else UNSEEN

    async def _send_pending(self) -> None:
        believed_until = time.monotonic() + BELIEVED_FOR_S
        while True:
            await asyncio.sleep(INTERVAL_S)
            if time.monotonic() > believed_until:
                try:
                    refusal = await database_sync_to_async(self._refusal, thread_sensitive=False)()
                except (InterfaceError, OperationalError):
                    refusal = ""  # while the database is away there is nothing to see either
                if refusal:
                    await self.close(FORBIDDEN, refusal)
                    return
                believed_until = time.monotonic() + BELIEVED_FOR_S
            pending, self.pending = self.pending, set()
            for key in pending:
                await self.send(json.dumps({"run": key}))


def _subscription(text: str | None) -> list[str] | None:
    """What a message asks for; None if it is none of ours."""
    try:
        content = json.loads(text or "")
    except (ValueError, RecursionError):
        return None
    wanted = content.get("subscribe") if isinstance(content, dict) else None
    if not isinstance(wanted, list) or not all(isinstance(key, str) and "\0" not in key for key in wanted):
        return None
    return wanted
