"""Serve an app inside a running event loop, at a loopback port of its own."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import uvicorn

KEEP_ALIVE_S = 75
"""So long a connection without a request stays open: longer than the tools of an agent take, as a rule."""
_START_DEADLINE_S = 10.0


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to whoever owns the loop."""
        yield


def answer_at_once(listener: socket.socket) -> None:
    """Let connections send what they have: the head of an answer goes out before its body, which would wait 40 ms."""
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def configured(app: Any, http: Any = "auto") -> uvicorn.Config:
    """What uvicorn is told of a gateway; `http` is its protocol of one connection."""
    return uvicorn.Config(
        app,
        http=http,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
    )


@contextlib.asynccontextmanager
async def serving(app: Any, path: Path | None = None) -> AsyncIterator[str]:
    """Serve until the block ends, at a socket of the file system too; gives the address, without a path."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    answer_at_once(listener)
    listeners = [listener, *([] if path is None else [_at(path)])]
    config = configured(app)
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=listeners))
    try:
        async with asyncio.timeout(_START_DEADLINE_S):
            while not server.started:
                if task.done():
                    task.result()
                    raise OSError("the gateway ended before it began")
                await asyncio.sleep(0.005)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await asyncio.gather(task, return_exceptions=True)
        for each in listeners:
            each.close()
        if path is not None:
            path.unlink(missing_ok=True)


def _at(path: Path) -> socket.socket:
    """A socket that whoever may enter its directory may open: what it serves asks for keys.

    Bound by its name in the directory, for a whole path may be longer than the 107 bytes that such an address has.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{path.name}")
        os.chmod(path.name, 0o666, dir_fd=directory)
    finally:
        os.close(directory)
    return listener
