"""Send an answer. Of a leased batch we know whether it arrived, and its lease is renewed as long as that takes."""

import asyncio
import logging
import time

from django.db import InterfaceError, OperationalError

from rollouts.crashpoints import CrashPoint, crash_point
from rollouts.doors.messages import Message, Receive, Send
from rollouts.doors.threads import in_thread
from rollouts.services.batches.forming import Outgoing
from rollouts.services.outside import deliveries

log = logging.getLogger(__name__)

CHUNK_BYTES = 64 * 1024
"""Written at once; what is on its way beyond it is the kernel's."""
DEADLINE_S = 600.0
"""A trainer that reads slower than this has stopped reading."""
AWAY_S = 600.0
"""For which a database that is away is told again that a batch arrived."""
AGAIN_S = 0.5
"""Until a database that is away is asked again."""


class Broken(Exception):
    """The batch did not arrive whole; whoever asks next gets it."""


async def send_answer(start: Message, body: bytes, outgoing: Outgoing | None, receive: Receive, send: Send) -> None:
    """Send an answer whose body is the batch ``outgoing``, if it is one."""
    if outgoing is not None and outgoing.token is not None:
        try:
            await _send_leased(start, body, outgoing, receive, send)
        except Broken:  # the server closes a connection whose answer is not complete
            log.info("a batch did not arrive whole: it is given to whoever asks next")
        return
    await send(start)
    if outgoing is not None:
        half = len(body) // 2
        await send({"type": "http.response.body", "body": body[:half], "more_body": True})
        await asyncio.sleep(0)  # what was sent so far leaves when the loop comes round
        crash_point(CrashPoint.MID_BODY)
        body = body[half:]
    await send({"type": "http.response.body", "body": body})


async def _send_leased(start: Message, body: bytes, outgoing: Outgoing, receive: Receive, send: Send) -> None:
    """Send the answer that carries a batch, then say that it arrived; or release it and raise Broken.

    Arrived means that all of it was handed to the connection and the client had not gone away until then. Whether the
    client read what the kernel holds, nobody can know but the client.
    """
    gone = asyncio.ensure_future(_disconnect(receive))
    sending = asyncio.ensure_future(_send(start, body, gone, send))
    renewing = asyncio.ensure_future(_renew(outgoing))
    tasks = {gone, sending, renewing}
    try:
        await asyncio.wait(tasks, timeout=DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
        if not sending.done() or sending.exception() is not None:
            raise Broken
        if not await _finish(outgoing):
            raise Broken
    except BaseException:
        await asyncio.shield(in_thread(deliveries.release, outgoing))
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _finish(outgoing: Outgoing) -> bool:
    """Say that it arrived, again and again while the database is away: the batch would be sent, and trained, twice.
    Until it is back, nobody takes what is leased."""
    deadline = time.monotonic() + AWAY_S
    while True:
        try:
            return await in_thread(deliveries.finish, outgoing)
        except (OperationalError, InterfaceError):
            if time.monotonic() >= deadline:
                raise
            await asyncio.sleep(AGAIN_S)


async def _send(start: Message, body: bytes, gone: "asyncio.Future[None]", send: Send) -> None:
    last = max(0, len(body) - 1) // CHUNK_BYTES * CHUNK_BYTES
    for at in range(0, last + 1, CHUNK_BYTES):
        # The server waits for the connection before it writes, and writes to one that broke without a word. So it is
        # made to wait first; then the loop comes round, and we hear of it before the chunk is written.
        await send({"type": "http.response.body", "body": b"", "more_body": True} if at else start)
        await asyncio.sleep(0)
        if gone.done():
            raise Broken
        await send({"type": "http.response.body", "body": body[at : at + CHUNK_BYTES], "more_body": at < last})


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _renew(outgoing: Outgoing) -> None:
    """Ends when the batch is no longer ours."""
    while True:
        await asyncio.sleep(deliveries.RENEW_S)
        if not await in_thread(deliveries.renew, outgoing):
            return
