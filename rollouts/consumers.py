"""One websocket per page. It says only "run R changed, seq n"; the page pulls what it shows.

A lost message therefore cannot lie, and there is nothing to replay after a reconnect. A browser subscribes to runs it
may see; messages of one run are merged to at most one per INTERVAL_S.

    client -> {"subscribe": ["<run key>", ...]} or {"subscribe": ["*"]}
    server -> {"run": "<run key>", "seq": n}
"""

import asyncio
from typing import Any

from asgiref.sync import sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer

from rollouts.bell import ALL_RUNS, group_of
from rollouts.selectors import runs as run_selectors

INTERVAL_S = 0.25
MAX_SUBSCRIPTIONS = 100
FORBIDDEN = 4403
TOO_MANY = 4429


class ChangesConsumer(AsyncJsonWebsocketConsumer):
    """Forwards the bell of the runs a signed-in user subscribed to."""

    async def connect(self) -> None:
        self.groups_joined: set[str] = set()
        self.visible: set[str] = set()
        """Keys of runs that were checked against the user's projects."""
        self.pending: dict[str, int] = {}
        self.sender: asyncio.Task[None] | None = None
        if not self.scope["user"].is_authenticated:
            await self.close(FORBIDDEN)
            return
        await self.accept()
        self.sender = asyncio.create_task(self._send_pending())

    async def disconnect(self, code: int) -> None:
        if self.sender is not None:
            self.sender.cancel()
        for group in self.groups_joined:
            await self.channel_layer.group_discard(group, self.channel_name)

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        wanted = content.get("subscribe") if isinstance(content, dict) else None
        if not isinstance(wanted, list) or not all(isinstance(key, str) for key in wanted):
            await self.close(FORBIDDEN)
            return
        if len(wanted) + len(self.groups_joined) > MAX_SUBSCRIPTIONS:
            await self.close(TOO_MANY)
            return
        keys = [key for key in wanted if key != "*"]
        allowed = await self._visible(keys)
        groups = {group_of(key) for key in allowed} | ({ALL_RUNS} if "*" in wanted else set())
        for group in groups - self.groups_joined:
            await self.channel_layer.group_add(group, self.channel_name)
            self.groups_joined.add(group)

    async def bell(self, message: dict[str, Any]) -> None:
        """A run changed. Through the group of all runs come also those of other projects: check each once."""
        key = message["run"]
        if key in self.visible or await self._visible([key]):
            self.pending[key] = max(message["seq"], self.pending.get(key, 0))

    async def _visible(self, keys: list[str]) -> set[str]:
        unknown = [key for key in keys if key not in self.visible]
        if unknown:
            self.visible |= await sync_to_async(self._query_visible, thread_sensitive=False)(unknown)
        return {key for key in keys if key in self.visible}

    def _query_visible(self, keys: list[str]) -> set[str]:
        runs = run_selectors.for_user(self.scope["user"]).filter(key__in=keys)
        return set(runs.values_list("key", flat=True))

    async def _send_pending(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            pending, self.pending = self.pending, {}
            for key, seq in pending.items():
                await self.send_json({"run": key, "seq": seq})
