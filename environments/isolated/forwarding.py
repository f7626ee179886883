"""The gateway on the loopback of a sandbox: a port whose connections go to the gateway's socket, byte by byte."""

import asyncio
import os

from environments.errors import SessionOver
from environments.isolated.frames import GATEWAY_SOCKET

_CHUNK_BYTES = 65_536


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
        behind_reader, behind_writer = await asyncio.open_unix_connection(path)
    except OSError:
        writer.close()
        return
    await asyncio.gather(_pass(reader, behind_writer), _pass(behind_reader, writer))


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
