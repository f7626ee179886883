"""TLS lines to the sockets of a database and a Redis, for workers on other machines.

    worker ──▶ socket in its own directory ──▶ TLS, a key ──▶ socket of the server

Both servers of a small cluster listen on sockets and on no port. The first line of a connection says the key and which
of them is meant; what follows is theirs. The certificate is the one that the worker was given, and no other.
"""

import asyncio
import hmac
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from environments.servers import notice_silence

log = logging.getLogger(__name__)

_HELLO_S = 10.0
"""For which a stranger may hold a connection."""
_STRANGERS = 64
"""At once; others wait in the listener's queue."""
_CONNECT_S = 20.0
_CHUNK_BYTES = 64 * 1024


@asynccontextmanager
async def serving(
    listening: socket.socket, certificate: Path, secret: Path, key: str, targets: Mapping[str, Path]
) -> AsyncIterator[None]:
    """Answer on a listening socket. `certificate` and `secret` are PEM files; `targets` are sockets by their names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, secret)
    strangers = asyncio.Semaphore(_STRANGERS)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _notice_silence(writer)
        try:
            async with strangers, asyncio.timeout(_HELLO_S):
                given, _, name = (await reader.readline()).decode(errors="replace").strip().partition(" ")
            if not hmac.compare_digest(given.encode(), key.encode()) or name not in targets:
                return
            await _join(reader, writer, *await asyncio.open_unix_connection(targets[name]))
        except (OSError, ValueError, TimeoutError) as error:
            log.info("a line ended: %s: %s", type(error).__name__, error)
        finally:
            writer.close()

    server = await asyncio.start_server(answer, sock=listening, ssl=context, ssl_handshake_timeout=_HELLO_S)
    async with server:
        yield


@asynccontextmanager
async def opened(
    address: tuple[str, int], certificate: str, key: str, sockets: Mapping[str, Path]
) -> AsyncIterator[None]:
    """Listen on sockets of ours, by the names of their targets, and pass each connection on. `certificate` is PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # this certificate alone is trusted, whatever the machine is called
    context.load_verify_locations(cadata=certificate)
    servers = []
    for name, place in sockets.items():

        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str = name) -> None:
            try:
                async with asyncio.timeout(_CONNECT_S):
                    there = await asyncio.open_connection(*address, ssl=context)
                _notice_silence(there[1])
                there[1].write(f"{key} {name}\n".encode())
                await _join(reader, writer, *there)
            except (OSError, TimeoutError) as error:
                log.warning("no line to %s: %s: %s", name, type(error).__name__, error)
            finally:
                writer.close()

        servers.append(await asyncio.start_unix_server(pass_on, place))
        place.chmod(0o600)
    try:
        yield
    finally:
        for server in servers:
            server.close()


def _notice_silence(writer: asyncio.StreamWriter) -> None:
    """What a worker held that has vanished is free when its line has ended."""
    notice_silence(writer.get_extra_info("socket"))


async def _join(
    here: asyncio.StreamReader,
    to_here: asyncio.StreamWriter,
    there: asyncio.StreamReader,
    to_there: asyncio.StreamWriter,
) -> None:
    """Pass on what comes from either side until one of them ends."""
    ways = [asyncio.create_task(_pour(here, to_there)), asyncio.create_task(_pour(there, to_here))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        to_there.close()


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
