"""Programs of a process that can make no sandbox itself: it asks its driver, which runs them beside it.

    process: RemoteEngine.run ──request──▶ driver: SandboxService.serve ── an engine
                              ◀──answer───

A sandbox inside the sandbox of a run would need a user namespace of its own, which is refused there. The driver
believes nothing: what is asked for is checked as it is decoded, limits are cut to its own, only so many run at once.
Requests and answers are MessagePack. Standard library and msgspec only.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from environments.sandbox.call import SandboxCall, SandboxLimits, SandboxResult
from environments.sandbox.engine import Engine
from environments.sandbox.program import SandboxUnavailable

MOST = SandboxLimits(
    wall_s=600.0,  # of a machine that is busy, for as much of a processor
    cpu_s=120.0,
    memory_bytes=2 * 2**30,
    processes=256,
    disk_bytes=256 * 2**20,
    files=50_000,
    open_files=1024,
    kept_bytes=16 * 2**20,  # all of it: a scorer that finds only its beginning takes the rest for wrong
    output_bytes=16 * 2**20,
    returned_bytes=4 * 2**20,
)
"""What a driver allows unless it is told otherwise."""


class SandboxAnswer(msgspec.Struct, frozen=True):
    """To one request: what came of it, or why nothing could."""

    result: SandboxResult | None = None
    refusal: str = ""


class RemoteEngine:
    """An engine whose programs are run by the driver; `send` takes a request there and gives the answer, decoded."""

    def __init__(self, send: Callable[[bytes], Awaitable[Any]]) -> None:
        self._send = send

    async def run(self, call: SandboxCall) -> SandboxResult:
        """As `Engine.run`."""
        answer = msgspec.convert(await self._send(msgspec.msgpack.encode(call)), SandboxAnswer)
        if answer.result is None:
            raise SandboxUnavailable(answer.refusal)
        return answer.result


class SandboxService:
    """The driver's side, for one process. Belongs to one event loop."""

    def __init__(self, engine: Engine, *, most: SandboxLimits = MOST, at_once: int = 4) -> None:
        self._engine = engine
        self._most = most
        self._free = asyncio.Semaphore(at_once)

    async def serve(self, request: bytes) -> msgspec.Raw:
        """Run what a request asks for and return the answer, encoded. Cancelling kills it.

        What waits lies in the driver's memory: whoever hands it on bounds how much that is.
        """
        try:
            call = msgspec.msgpack.decode(request, type=SandboxCall)
            call = msgspec.structs.replace(call, limits=call.limits.at_most(self._most))
            async with self._free:
                answer = SandboxAnswer(await self._engine.run(call))
        except (SandboxUnavailable, ValueError, RecursionError) as error:
            # A decoding error is a ValueError, and so is a call that cannot be run.
            answer = SandboxAnswer(refusal=str(error))
        return msgspec.Raw(msgspec.msgpack.encode(answer))
