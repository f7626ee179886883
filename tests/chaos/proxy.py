"""A TCP proxy that cuts the connection in the middle of a response, at a byte drawn from a seed.

client ──► proxy ──► server        a request whose path matches is passed on; of its response
client ◄─n─ proxy ◄── server       the first n bytes come back, 0 <= n < its length; then both connections end

It knows just enough HTTP/1.1: where a response begins (after its request), its status and its Content-Length.
"""

import asyncio
import contextlib
import random
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

_CHUNK_BYTES = 65_536
_REQUEST = re.compile(rb"[A-Z]+ (\S+) HTTP/1\.1\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


class Cut(NamedTuple):
    """One response that was cut short."""

    path: str
    passed_bytes: int
    length_bytes: int
    """Of the whole response with its head."""


class Proxy:
    """Passes everything on, except what it cuts."""

    def __init__(self, upstream: str, *, path: str, seed: int, chance: float = 0.5, within: float = 1.0) -> None:
        """Cuts successful responses to paths in which the pattern ``path`` is found, each with this chance.

        The cut is in the first part ``within`` of the response: the more is left, the surer the server notices.
        """
        target = urlsplit(upstream)
        self.upstream = (target.hostname or "127.0.0.1", target.port or 80)
        self.cuts: list[Cut] = []
        self.left = 2**31
        """Cuts that are still to be made."""
        self._path = re.compile(path)
        self._dice = random.Random(seed)
        self._chance = chance
        self._within = within

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of a client until either side ends it."""
        upstream = socket.socket()
        upstream.setblocking(False)
        # As little as possible between the server and the cut: what the kernel holds the server takes for sent.
        upstream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _CHUNK_BYTES)
        try:
            await asyncio.get_running_loop().sock_connect(upstream, self.upstream)
        except OSError:
            upstream.close()
            return _end(writer, abruptly=True)
        upstream_reader, upstream_writer = await asyncio.open_connection(sock=upstream)
        asked = [""]
        both = [
            asyncio.create_task(self._pass_requests(reader, upstream_writer, asked)),
            asyncio.create_task(self._pass_responses(upstream_reader, writer, asked)),
        ]
        with contextlib.suppress(asyncio.CancelledError):  # the proxy is stopped
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
        abruptly = self._dice.random() < 0.5
        _end(writer, abruptly=abruptly)
        _end(upstream_writer, abruptly=abruptly)

    async def _pass_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: list[str]
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                if match := _REQUEST.match(data):
                    asked[0] = match[1].decode()
                writer.write(data)
                await writer.drain()

    async def _pass_responses(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: list[str]
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                if asked[0] and self._path.search(asked[0]):
                    while b"\r\n\r\n" not in data and (more := await reader.read(_CHUNK_BYTES)):
                        data += more  # nothing is passed before it is decided where to cut
                    path, asked[0] = asked[0], ""
                    length = _length(data)
                    if length and self.left > 0 and self._dice.random() < self._chance:
                        passed = self._dice.randrange(max(1, int(length * self._within)))
                        return await self._cut(Cut(path, passed, length), data, reader, writer)
                writer.write(data)
                await writer.drain()

    async def _cut(self, cut: Cut, data: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while len(data) < cut.passed_bytes and (more := await reader.read(_CHUNK_BYTES)):
            data += more
        self.cuts.append(cut)
        self.left -= 1
        writer.write(data[: cut.passed_bytes])
        await writer.drain()


def _length(data: bytes) -> int:
    """Bytes of a whole successful response, of which this is the beginning; 0 when there is nothing worth cutting."""
    head = data.split(b"\r\n\r\n")[0] + b"\r\n"
    declared = _LENGTH.search(head)
    return len(head) + 2 + int(declared[1]) if head.startswith(b"HTTP/1.1 200 ") and declared else 0


def _end(writer: asyncio.StreamWriter, *, abruptly: bool) -> None:
    """Close a connection: in good order, or with a reset, which is what a dead machine's router sends."""
    if abruptly and (connection := writer.get_extra_info("socket")):
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()


@contextmanager
def running_proxy(proxy: Proxy) -> Iterator[str]:
    """Run a proxy in a thread of its own while the block lasts; yields its URL."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(proxy.connected, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        asyncio.run_coroutine_threadsafe(_stop(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _stop(server: asyncio.Server) -> None:
    server.close()
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
