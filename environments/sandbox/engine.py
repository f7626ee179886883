"""What runs programs: the face that all engines have, and threads for those that block.

A sandbox is attended by one thread from its start to its end. So an engine serves any number of event loops, and a
program that is waited for no longer is killed before its caller goes on.
"""

import asyncio
import os
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, Protocol

from environments import processors
from environments.sandbox.attendance import attend
from environments.sandbox.call import SandboxCall, SandboxResult
from environments.sandbox.cell import Cell
from environments.sandbox.pipes import Stop

AT_ONCE = 4 * processors.count()
"""Sandboxes that a process has at a time; further calls wait, and their time does not run. As many on a processor: what
is judged by time of the processor has five times that by the clock."""


class Engine(Protocol):
    """Runs programs where they can do no harm."""

    async def run(self, call: SandboxCall) -> SandboxResult:
        """Run one. Cancelling kills it. Raises SandboxUnavailable."""
        ...


class ThreadedEngine(ABC):
    """An engine that starts a process for each program."""

    name: ClassVar[str]

    @abstractmethod
    def make(self, call: SandboxCall) -> Cell:
        """Return a sandbox that is not started yet. Raises SandboxUnavailable."""

    async def run(self, call: SandboxCall) -> SandboxResult:
        """As `Engine.run`."""
        stop = Stop()
        attending = _threads().submit(attend, lambda: self.make(call), stop)
        waiting = asyncio.wrap_future(attending)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if not attending.cancel():  # it has begun
                stop.set()
                await asyncio.wait([waiting])
                if not waiting.cancelled():
                    waiting.exception()  # nobody else will ask what came of it
            raise


_pool: ThreadPoolExecutor | None = None


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="sandbox")
    return _pool


def _forget_threads() -> None:
    """A forked process has none of them."""
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_threads)
