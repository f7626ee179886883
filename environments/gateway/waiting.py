"""Wait for the policy on behalf of a client, no longer than the client itself waits."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from environments.errors import EpisodeError
from environments.session import Asked

T = TypeVar("T")

KEEP_ALIVE_S = 10.0
"""Between signs of life in a stream that waits for the policy: proxies cut silent ones."""


async def unless_gone(request: Request, asking: Awaitable[T]) -> T:
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
    request: Request,
    asking: Awaitable[Asked],
    events: Callable[[Asked], Iterator[bytes]],
    refused: Callable[[EpisodeError], bytes],
) -> AsyncIterator[bytes]:
    """The events of an answer, to be sent as they come; Starlette cancels them when the client hangs up.

    Returns with the first of them, or with a sign of life after KEEP_ALIVE_S. What goes wrong before that is raised,
    and has a status of its own; what goes wrong later can only be an event, `refused`. Raises ClientDisconnect.
    """
    stream = _awaited(asking, events)
    first = await unless_gone(request, anext(stream))

    async def rest() -> AsyncIterator[bytes]:
        async with aclosing(stream):
            yield first
            try:
                async for event in stream:
                    yield event
            except EpisodeError as error:
                yield refused(error)

    return rest()


async def _awaited(asking: Awaitable[Asked], events: Callable[[Asked], Iterator[bytes]]) -> AsyncGenerator[bytes, None]:
    work = asyncio.ensure_future(asking)
    try:
        while not (await asyncio.wait({work}, timeout=KEEP_ALIVE_S))[0]:
            yield b": waiting for the policy\n\n"
        for event in events(work.result()):
            yield event
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
