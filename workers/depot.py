"""The files of a job on a node that shares no disk with the control plane, and the routes by which that brings and
fetches them.

    PUT  file?path&name&offset   a piece of what is brought     POST arrived {path, entries}   all of it is there
    GET  file?path&name&offset   a piece of what is fetched     GET  entries?path              what there is, by hash
    GET  status?log              how the replica is, its log,   POST begin, stop, leave        what it is to do
                                 and what it offers             POST taken, drop {path}        fetched; of no more use

Paths are those of the control plane; on the node they lie below a directory of the job. What a trainer announces is
offered first, and announced once it was fetched: no row names files that are gone with a node.
"""

import asyncio
import base64
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from environments import disk
from workers import transfers
from workers.launchers import accounts
from workers.launchers.base import scratch
from workers.transfers import Arrival, Listed, TransferError

PREFIX = "/depot/"
_LOG_BYTES = 256 * 1024
_REPORT_BYTES = 64 * 1024
_OFFER_S = 500.0
"""For which an announcement waits until its files were fetched; trainers ask again for ten minutes."""
_ANNOUNCEMENTS = ("/policy-versions", "/checkpoints")
_REPORTS = ("agent.json", "started.json", "why.json", "exit.json")


class Depot:
    """Files of one job, below `root`. Lives on one event loop."""

    def __init__(self, root: Path, directory: Path) -> None:
        self._root = root
        self._directory = directory
        """The replica's, as the control plane names it."""
        self.begun = asyncio.Event()
        self.stopped = asyncio.Event()
        self.left = asyncio.Event()
        self._offers: dict[str, asyncio.Event] = {}

    def place(self, path: Path) -> Path:
        """Where a path of the control plane is on this node. Raises TransferError."""
        if not path.is_absolute() or ".." in path.parts:
            raise TransferError(f"{path} is no absolute path")
        return self._root / path.relative_to("/")

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one of the routes above; whoever asks has the key."""
        routes: dict[tuple[str, str], Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]] = {
            ("PUT", "file"): self._put,
            ("GET", "file"): self._get,
            ("GET", "entries"): self._entries,
            ("POST", "arrived"): self._arrived,
            ("POST", "taken"): self._taken,
            ("POST", "drop"): self._drop,
            ("GET", "status"): self._status,
            ("POST", "begin"): self._set(self.begun),
            ("POST", "stop"): self._set(self.stopped),
            ("POST", "leave"): self._set(self.left),
        }
        route = routes.get((request.method, request.path.removeprefix(PREFIX)))
        if route is None:
            return web.Response(status=404)
        try:
            return await route(request)
        except (TransferError, KeyError, ValueError, FileNotFoundError) as error:
            return web.Response(status=422, text=f"{type(error).__name__}: {error}")
        except OSError as error:
            return web.Response(status=507, text=str(error))

    async def offer(self, path: str) -> None:
        """Wait until the control plane has fetched what lies under a path, then let go of it. Raises TimeoutError."""
        async with asyncio.timeout(_OFFER_S):
            await self._offers.setdefault(path, asyncio.Event()).wait()

    async def before_announcing(self, request: web.BaseRequest, body: bytes) -> None:
        """Have the files of what a trainer announces fetched before the announcement goes on."""
        if request.method == "POST" and request.path.endswith(_ANNOUNCEMENTS):
            try:
                announced = json.loads(body)
                path = str(announced["path"])
                is_there = self.place(Path(path)).exists()
            except (TransferError, ValueError, TypeError, KeyError, OSError, RecursionError):
                return  # the control plane says what is wrong with it
            if is_there:
                await self.offer(path)

    async def _put(self, request: web.BaseRequest) -> web.StreamResponse:
        incoming, name = Arrival(self._named(request)), request.query["name"]
        offset = int(request.query["offset"])
        async for chunk in request.content.iter_chunked(2**20):
            await asyncio.to_thread(incoming.write, name, offset, chunk)
            offset += len(chunk)
        return web.json_response({"received": offset})

    async def _get(self, request: web.BaseRequest) -> web.StreamResponse:
        path, name = self._named(request), request.query["name"]
        offset = int(request.query["offset"])

        def read() -> bytes:
            with transfers.opened(path, name) as file:
                file.seek(offset)
                return file.read(transfers.PIECE_BYTES)

        return web.Response(body=await asyncio.to_thread(read))

    async def _entries(self, request: web.BaseRequest) -> web.StreamResponse:
        found = await asyncio.to_thread(transfers.entries, self._named(request))
        return web.json_response([list(entry) for entry in found])

    async def _arrived(self, request: web.BaseRequest) -> web.StreamResponse:
        body = json.loads(await request.read())
        target = self.place(Path(body["path"]))
        wanted = [Listed(*entry) for entry in body["entries"]]
        await asyncio.to_thread(Arrival(target).finish, wanted)
        await asyncio.to_thread(accounts.open_to, accounts.account_of_runs(), [target])
        return web.json_response({})

    async def _taken(self, request: web.BaseRequest) -> web.StreamResponse:
        path = json.loads(await request.read())["path"]
        if path in self._offers:
            self._offers.pop(path).set()
            # Nobody reads it here: who resumes from it is another job.
            await asyncio.to_thread(shutil.rmtree, self.place(Path(path)), ignore_errors=True)
        return web.json_response({})

    async def _drop(self, request: web.BaseRequest) -> web.StreamResponse:
        path = self.place(Path(json.loads(await request.read())["path"]))
        await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
        return web.json_response({})

    async def _status(self, request: web.BaseRequest) -> web.StreamResponse:
        directory, told = self.place(self._directory), int(request.query["log"])
        reports = {name: content for name in _REPORTS if (content := _read(directory / name)) is not None}
        fault = _read(scratch(directory) / "fault.json")  # the run's own to write
        log = _tail(directory / "log.txt", told)
        return web.json_response(
            {
                "has_begun": self.begun.is_set(),
                "reports": reports,
                "fault": fault,
                "heart_beats": (directory / "heartbeat").exists() and (directory / "heartbeat").stat().st_mtime_ns,
                "log": base64.b64encode(log).decode(),
                "offers": list(self._offers),
            }
        )

    def _set(self, event: asyncio.Event) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
        async def set_it(_request: web.BaseRequest) -> web.StreamResponse:
            event.set()
            return web.json_response({})

        return set_it

    def _named(self, request: web.BaseRequest) -> Path:
        return self.place(Path(request.query["path"]))


def _read(file: Path) -> Any:
    try:
        return json.loads(disk.read_regular(file, _REPORT_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def _tail(file: Path, offset: int) -> bytes:
    """What was written after an offset, so much at most."""
    try:
        with file.open("rb") as opened:
            opened.seek(offset)
            return opened.read(_LOG_BYTES)
    except FileNotFoundError:
        return b""
