"""The gateway on the loopback of a sandbox: a port whose connections go to the gateway's socket, byte by byte."""

import asyncio
import logging
import os

from environments.errors import SessionOver
from environments.isolated.frames import GATEWAY_SOCKET

_CHUNK_BYTES = 65_536
_log = logging.getLogger(__name__)


class Forwarding:
    """Opens its port when the first address is asked for. Belongs to one event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._server: asyncio.Server | None = None

    async def url(self) -> str:
        """Where the gateway is in here, without a path. Raises SessionOver where none is."""
        path = os.environ.get(GATEWAY_SOCKET, "")
        if not path:
            raise SessionOver("No gateway reaches this process: use session.reply.")
        async with self._lock:
            if self._server is None:
                self._server = await asyncio.start_server(lambda *ends: _connect(path, *ends), "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"


async def _connect(path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        behind_reader, behind_writer = await _open(path)
    except OSError as error:
        _log.warning("the gateway at %s cannot be reached: %s", path, error)
        writer.close()
        return
    await asyncio.gather(_pass(reader, behind_writer), _pass(behind_reader, writer))


async def _open(path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """By its name in its directory, for a whole path may be longer than the 107 bytes that such an address has."""
    place, name = os.path.split(path)
    directory = os.open(place, os.O_PATH | os.O_DIRECTORY)
    try:
        return await asyncio.open_unix_connection(f"/proc/self/fd/{directory}/{name}")
    finally:
        os.close(directory)


async def _pass(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Until one side ends; then so does the other."""
    try:
        while chunk := await source.read(_CHUNK_BYTES):
            target.write(chunk)
            await target.drain()
    except ConnectionError:
        pass
    finally:
        target.close()
