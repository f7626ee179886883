"""Wait for the policy on behalf of a client, no longer than the client itself waits."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from starlette.requests import ClientDisconnect, Request

from environments.session import Asked

KEEP_ALIVE_S = 10.0
"""Between signs of life in a stream that waits for the policy: proxies cut silent ones."""


async def unless_gone(request: Request, asking: Awaitable[Asked]) -> Asked:
    """The answer, unless the client hangs up before: then the work is cancelled. Raises ClientDisconnect."""
    work = asyncio.ensure_future(asking)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def streamed(
    asking: Awaitable[Asked], events: Callable[["asyncio.Future[Asked]"], Iterator[bytes]]
) -> AsyncIterator[bytes]:
    """The events of an answer, once it is there; Starlette cancels this when the client hangs up."""
    work = asyncio.ensure_future(asking)
    try:
        while not (await asyncio.wait({work}, timeout=KEEP_ALIVE_S))[0]:
            yield b": waiting for the policy\n\n"
        for event in events(work):
            yield event
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
