"""The table in which the ranks of a trainer on several nodes find each other. Lives in the agent of the first node.

    POST set?key     a value      GET  get?key   it, waiting a while; 404: not yet     GET has?key   whether it is there
    POST add?key     a number     answers the sum                                      POST delete?key

What is asked comes from ranks, which is to say from code of a run: keys, values and their number have limits.
"""

import asyncio
import contextlib
from collections.abc import Callable

from aiohttp import web

PREFIX = "/meeting/"
_WAIT_S = 20.0
_MAX_KEY, _MAX_VALUE, _MAX_TOTAL = 1024, 2**20, 64 * 2**20


class Meeting:
    """One start's. Lives on one event loop."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._total = 0
        self._changed = asyncio.Condition()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one of the routes above."""
        key = request.query.get("key", "")
        if not key or len(key) > _MAX_KEY or (request.content_length or 0) > _MAX_VALUE:
            return web.Response(status=413, text="That is no key and value of ranks that meet.\n")
        match request.method, request.path.removeprefix(PREFIX):
            case "POST", "set":
                value = await request.read()
                return await self._change(key, lambda _: value)
            case "POST", "add":
                try:
                    amount = int(await request.read())
                    return await self._change(key, lambda before: str(int(before or b"0") + amount).encode())
                except ValueError:
                    return web.Response(status=422, text="That is no number.\n")
            case "POST", "delete":
                before = self._values.pop(key, None)
                self._total -= 0 if before is None else len(before) + len(key)
                return self._given(before)
            case "GET", "has":
                return self._given(self._values.get(key))
            case "GET", "get":
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_WAIT_S), self._changed:
                        await self._changed.wait_for(lambda: key in self._values)
                return self._given(self._values.get(key))
        return web.Response(status=405)

    async def _change(self, key: str, change: Callable[[bytes | None], bytes]) -> web.StreamResponse:
        before = self._values.get(key)
        value = change(before)
        total = self._total + len(value) + len(key) - (0 if before is None else len(before) + len(key))
        if len(value) > _MAX_VALUE or total > _MAX_TOTAL:
            return web.Response(status=413, text="Ranks that meet have no more to say than this.\n")
        self._values[key], self._total = value, total
        async with self._changed:
            self._changed.notify_all()
        return self._given(value)

    @staticmethod
    def _given(value: bytes | None) -> web.Response:
        return web.Response(status=404) if value is None else web.Response(body=value)
