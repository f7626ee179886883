"""A web process that takes its share of the connections of one listening socket, and no more memory than it needs.

The kernel wakes all processes that share a socket, and whoever is first would take everything that waits. Clients of
the data path keep their connections, so eight of them could stay with one process for good while the other idles. Here
each process shows the others how many connections it has, takes one at a time, and waits for as long as it is ahead of
somebody.

What a burst of groups needed is free afterwards, but glibc keeps it, scattered over the arenas of threads: 30 MB of a
process that has 130. So it is asked to give back what it does not use.
"""

import asyncio
import contextlib
import ctypes
import logging
import mmap
import os
import socket
import tempfile
from collections.abc import Iterator
from functools import partial
from typing import IO, Any

import uvicorn

from controlplane.home import FOR_RUNS

PATIENCE_S, LONGEST_PATIENCE_S = 0.002, 0.02
"""What a process leaves to the others for each connection that it is ahead by. The longest, because a process that
died keeps its last number until it is back."""
_FULL_S = 1.0
"""Seconds before accepting again when the process is out of file descriptors."""
_BYTES = 4
_NETNS_COOKIE = 71
"""SO_NETNS_COOKIE, which Python does not name: the number of a network, which no later one is given."""
_TICKS_TO_TRIM = 100
"""uvicorn ticks every 0.1 s. Trimming takes a millisecond or a few."""
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""glibc's; other allocators give memory back by themselves."""
logger = logging.getLogger(__name__)


@contextlib.contextmanager
def counts_file(processes: int) -> Iterator[IO[bytes]]:
    """Open what the processes share: an unnamed file with a number for each, all zero."""
    with tempfile.TemporaryFile() as file:
        file.truncate(processes * _BYTES)
        yield file


class Share:
    """One process' place among those that share a socket: how many connections it has, and whether that is many."""

    def __init__(self, counts_fd: int, place: int) -> None:
        size = os.fstat(counts_fd).st_size
        if not 0 <= place < size // _BYTES:
            raise ValueError(f"place {place} of {size // _BYTES}: start each process with a place of its own, from 0")
        self._counts = memoryview(mmap.mmap(counts_fd, size)).cast("I")
        self._place = place
        self.show(0)

    def show(self, connections: int) -> None:
        """Publish this process's number of connections to the others."""
        self._counts[self._place] = connections

    @property
    def patience_s(self) -> float:
        """Seconds to wait before accepting, so that processes with fewer connections do first. 0: none has fewer."""
        ahead = self._counts[self._place] - min(self._counts)
        return min(ahead * PATIENCE_S, LONGEST_PATIENCE_S)


class _Shown(set[Any]):
    """The connections of a server; their number is shown whenever it changes."""

    def __init__(self, share: Share) -> None:
        super().__init__()
        self._share = share

    def add(self, connection: Any) -> None:
        super().add(connection)
        self._share.show(len(self))

    def discard(self, connection: Any) -> None:
        super().discard(connection)
        self._share.show(len(self))


class SharingServer(uvicorn.Server):
    """A uvicorn server that takes its share of the connections of one socket, and of one for the code of runs.

    What comes over the second has its sandbox as `FOR_RUNS` in the state of its scope.
    """

    def __init__(
        self, config: uvicorn.Config, listening: socket.socket, share: Share, *, for_runs: socket.socket | None = None
    ) -> None:
        super().__init__(config)
        self._listening = [each for each in (listening, for_runs) if each is not None]
        for each in self._listening:
            each.setblocking(False)
        self._share = share
        self.server_state.connections = _Shown(share)
        self._taking: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])  # asyncio's own way to accept takes all that wait
        self._taking = [asyncio.create_task(self._take(each)) for each in self._listening]

    async def on_tick(self, counter: int) -> bool:
        for taking in self._taking:
            if taking.done():
                taking.result()  # raises: a process that takes nothing more has to end, so that it is started again
        if _trim is not None and counter % _TICKS_TO_TRIM == 0:
            await asyncio.to_thread(_trim, 0)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for taking in self._taking:
            taking.cancel()
        for listening in self._listening:
            listening.close()
        await super().shutdown(sockets)

    async def _take(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        is_local = listening.family == socket.AF_UNIX
        while True:
            await _readable(listening)
            if patience_s := self._share.patience_s:
                await asyncio.sleep(patience_s)
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                continue  # somebody else took it, or it is gone
            except OSError as error:
                logger.error("a connection cannot be taken: %s", error)
                await asyncio.sleep(_FULL_S)
                continue
            try:
                connection.setblocking(False)
                if not is_local:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                state = {FOR_RUNS: _sandbox(connection)} if is_local else {}
                await loop.connect_accepted_socket(partial(self._connection, state), connection)
            except OSError:  # it is gone already
                connection.close()

    def _connection(self, state: dict[str, Any]) -> asyncio.Protocol:
        protocol: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]  # as uvicorn calls it
            config=self.config, server_state=self.server_state, app_state={**self.lifespan.state, **state}
        )
        return protocol


def _sandbox(connection: socket.socket) -> str:
    """The network that the process which connected is in: each sandbox has its own, and no code in it leaves it.

    Without sandboxes all are in ours, as they are in each other's power.
    """
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _NETNS_COOKIE, 8).hex()
    except OSError:  # before Linux 5.14, and elsewhere
        return "unknown"


async def _readable(listening: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake() -> None:
        loop.remove_reader(listening)
        if not woken.done():
            woken.set_result(None)

    loop.add_reader(listening, wake)
    try:
        await woken
    finally:
        loop.remove_reader(listening)
