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
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.contrib.auth.models import User
from django.db import InterfaceError, OperationalError

from rollouts.bell import ALL_RUNS, SEND_DEADLINE_S, group_of
from rollouts.selectors import runs

log = logging.getLogger(__name__)

INTERVAL_S = 0.25
MAX_SUBSCRIPTIONS = 100
VISIBLE_FOR_S = 60.0
"""How long an answer to "may this user see that run" is believed: a socket may outlive a membership."""
SIGNED_IN_FOR_S = 30.0
"""How long it is believed that the session goes on: a socket may outlive it, and its user's account."""
FORBIDDEN = 4403
UNREADABLE = 4400
TOO_MANY = 4429


class ChangesConsumer(AsyncWebsocketConsumer):
    """Forwards the bell of the runs a signed-in user subscribed to."""

    async def connect(self) -> None:
        self.joined: set[str] = set()
        self.asked = 0
        self.visible: dict[str, tuple[float, bool]] = {}
        """Run key -> (asked at, whether the user may see it)."""
        self.pending: set[str] = set()
        self.sender: asyncio.Task[None] | None = None
        if not self.scope["user"].is_authenticated:
            await self.close(FORBIDDEN)
            return
        await self.accept()
        self.sender = asyncio.create_task(self._send_pending())

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

    async def bell(self, message: dict[str, Any]) -> None:
        """A run changed. Through the group of all runs come also those of other projects."""
        key = message["run"]
        asked_at, is_visible = self.visible.get(key, (0.0, False))
        if time.monotonic() - asked_at > VISIBLE_FOR_S or asked_at == 0.0:
            await database_sync_to_async(self._query_visible, thread_sensitive=False)({key})
            _, is_visible = self.visible[key]
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

    def _is_signed_in(self) -> bool:
        """Whether session, account and password still are what they were; takes the user's rights of now."""
        session, known = self.scope["session"], self.scope["user"]
        user = User.objects.filter(pk=known.pk, is_active=True).first()
        if user is None or user.password != known.password or not session.exists(session.session_key):
            return False
        self.scope["user"] = user
        return True

    async def _send_pending(self) -> None:
        believed_until = time.monotonic() + SIGNED_IN_FOR_S
        while True:
            await asyncio.sleep(INTERVAL_S)
            if time.monotonic() > believed_until:
                try:
                    is_signed_in = await database_sync_to_async(self._is_signed_in, thread_sensitive=False)()
                except (InterfaceError, OperationalError):
                    is_signed_in = True  # while the database is away there is nothing to see either
                if not is_signed_in:
                    await self.close(FORBIDDEN)
                    return
                believed_until = time.monotonic() + SIGNED_IN_FOR_S
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
