"""The files of a job on a node that shares no disk with the control plane, and the routes by which that brings and
fetches them.

    POST file?path&name&size&offset  what is brought, see below   POST arrived {path, entries}  all of it is there
    GET  arriving?path&whole         how much of it there is      GET  entries?path             what there is, by hash
    GET  file?path&name              what is fetched              POST taken, drop {path}       fetched; of no more use
    POST status {logs}               how the replica is, what its POST begin, stop, leave       what it is to do
                                     logs have since, its offers  POST report?node&offset&code  by the other nodes, of
    GET  brought                     for the other nodes: what                                  their logs and end

Paths are those of the control plane; on the node they lie below a directory of the job. What a trainer announces is
offered first, and announced once it was fetched: no row names files that are gone with a node.

A file takes no way through the interpreter: to who fetches it by `sendfile`, and one that is brought follows the answer
101 on the bare connection (RFC 9110, section 7.8), where a thread reads it. One line ends that: empty, or the fault.
"""

import asyncio
import base64
import json
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from environments import disk
from workers import doors, transfers
from workers.launchers import accounts
from workers.launchers.base import scratch
from workers.transfers import Arrival, Listed, TransferError

PREFIX = "/depot/"
BARE = "rollyard-file"
"""What a connection is upgraded to on which a file is brought."""
BARE_S = 60.0
"""Without a byte, after which such a connection is given up."""
_LOG_BYTES = 256 * 1024
_REPORT_BYTES = 64 * 1024
_OFFER_S = 500.0
"""For which an announcement waits until its files were fetched; trainers ask again for as long as that may take."""
ANNOUNCEMENTS = ("/policy-versions", "/checkpoints")
"""How the paths end at which a trainer makes them."""
_LISTED_S = 20.0
"""For which whoever asks what there is waits before it is told to ask again: all of it is read, and may be large."""
_LOOK_S = 0.5
_FETCHED_S = 300.0
"""Without a file on its way, after which what is left of a replica that has ended is given up."""
_QUIET_S = 3600.0
"""Without a byte of what the replica reads, after which nobody waits for the rest. Before the first of a file comes,
the control plane reads and hashes all of its directory."""
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
        self.failed = asyncio.Event()
        """Another node's part of the replica has ended, and not well."""
        self._offers: dict[str, asyncio.Event] = {}
        self._arrivals: dict[Path, Arrival] = {}
        self._whole: dict[Path, list[Listed]] = {}
        """What has arrived, as it was announced and found."""
        self._finishing = asyncio.Lock()
        """One arrival at a time is given its name: who asks again while it is would take away what is there."""
        self._brought: list[str] = []
        self._came_at = time.monotonic()
        """When the last byte came of what is brought."""
        self._listings: dict[Path, asyncio.Future[list[Listed]]] = {}
        self._going = 0
        """What is being fetched, or read for who fetches it."""

    def place(self, path: Path) -> Path:
        """Where a path of the control plane is on this node. Raises TransferError."""
        if not path.is_absolute() or ".." in path.parts:
            raise TransferError(f"{path} is no absolute path")
        return self._root / path.relative_to("/")

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one of the routes above; whoever asks has the key."""
        routes: dict[tuple[str, str], Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]] = {
            ("POST", "file"): self._take,
            ("GET", "file"): self._give,
            ("GET", "arriving"): self._arriving,
            ("GET", "entries"): self._entries,
            ("POST", "arrived"): self._arrived,
            ("POST", "taken"): self._taken,
            ("POST", "drop"): self._drop,
            ("POST", "status"): self._status,
            ("GET", "brought"): self._tell_brought,
            ("POST", "report"): self._be_reported,
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

    async def before_announcing(self, body: bytes) -> None:
        """Have the files of what a trainer announces fetched before the announcement goes on."""
        try:
            announced = json.loads(body)
            path = str(announced["path"])
            is_there = self.place(Path(path)).exists()
        except (TransferError, ValueError, TypeError, KeyError, OSError, RecursionError):
            return  # the control plane says what is wrong with it
        if is_there:
            await self.offer(path)

    async def is_brought(self, wanted: Sequence[str], *, unless: asyncio.Event) -> bool:
        """Wait for what the replica reads, for as long as more of it comes; False where the job is to end first.
        Raises TimeoutError with what is not there of what is wanted."""
        waits = [asyncio.create_task(event.wait()) for event in (self.begun, self.stopped, unless)]
        try:
            while not (await asyncio.wait(waits, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED))[0]:
                if time.monotonic() - self._came_at > _QUIET_S:
                    raise TimeoutError(self._missing(wanted))
        finally:
            for wait in waits:
                wait.cancel()
        return self.begun.is_set() and not self.stopped.is_set() and not unless.is_set()

    async def be_fetched(self) -> None:
        """Wait until nothing here is of use any more, for as long as more of it goes."""
        went_at = time.monotonic()
        while time.monotonic() - went_at < _FETCHED_S:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self.left.wait()
                    return
            if self._going:
                went_at = time.monotonic()

    def _missing(self, wanted: Sequence[str]) -> str:
        if missing := ", ".join(path for path in wanted if path not in self._brought):
            return f"nothing came from the control plane for {_QUIET_S:.0f} s, and these are not here: {missing}"
        return f"all was brought, and for {_QUIET_S:.0f} s the control plane has not said that it may begin"

    async def _take(self, request: web.BaseRequest) -> web.StreamResponse:
        incoming, name = self._arrival(self._named(request)), request.query["name"]
        size, offset = int(request.query["size"]), int(request.query["offset"])
        transport = request.transport
        if request.headers.get("Upgrade") != BARE or transport is None:
            return web.Response(status=426, headers={"Upgrade": BARE})
        # Nothing has come yet: who brings a file waits for the answer.
        transport.pause_reading()
        answer = web.StreamResponse(status=101, headers={"Upgrade": BARE, "Connection": "Upgrade"})
        await answer.prepare(request)
        bare = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        bare.setblocking(True)
        bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", round(BARE_S), 0))

        def read_into(room: memoryview) -> int:
            if got := bare.recv_into(room, 0, socket.MSG_WAITALL):  # as much as fits, in one call
                self._came_at = time.monotonic()
            return got

        def take() -> None:
            with bare:
                wrong = ""
                try:
                    incoming.take(name, size, read_into, offset=offset)
                except (TransferError, OSError) as error:
                    wrong = str(error)
                bare.sendall(f"{wrong}\n".encode())

        try:
            await asyncio.to_thread(take)
        finally:
            transport.close()
        return answer

    async def _give(self, request: web.BaseRequest) -> web.StreamResponse:
        file = await asyncio.to_thread(transfers.opened, self._named(request), request.query["name"])
        with self._is_going(), file:
            # By its descriptor: what has its name may be another by now.
            answer = web.FileResponse(f"/proc/self/fd/{file.fileno()}")
            await answer.prepare(request)
        return answer

    async def _arriving(self, request: web.BaseRequest) -> web.StreamResponse:
        target = self._named(request)
        whole = self._found_whole(target)
        if whole is not None and transfers.fingerprint(whole) == request.query.get("whole"):
            return web.json_response({entry.name: entry.size for entry in whole})
        return web.json_response(await asyncio.to_thread(self._arrival(target).received))

    async def _entries(self, request: web.BaseRequest) -> web.StreamResponse:
        target = self._named(request)
        if target not in self._listings:
            self._listings[target] = asyncio.ensure_future(asyncio.to_thread(transfers.entries, target))
        listing = self._listings[target]
        with self._is_going():
            if not (await asyncio.wait([listing], timeout=_LISTED_S))[0]:
                return web.Response(status=202)
        if self._listings.get(target) is listing:  # who asks for it again wants what there is then
            del self._listings[target]
        return web.json_response([list(entry) for entry in listing.result()])

    async def _arrived(self, request: web.BaseRequest) -> web.StreamResponse:
        body = json.loads(await doors.read_whole(request))
        named = str(body["path"])
        target = self.place(Path(named))
        wanted = [Listed(*entry) for entry in body["entries"]]
        async with self._finishing:
            if self._found_whole(target) != wanted:
                await self._finish(target, wanted)
            await asyncio.to_thread(accounts.open_to, accounts.account_of_runs(), [target])
        self._brought = [*(each for each in self._brought if each != named), named]
        self._came_at = time.monotonic()
        return web.json_response({})

    async def _finish(self, target: Path, wanted: list[Listed]) -> None:
        if wanted:  # it takes the place of what is there
            self._forget(target)
        try:
            await asyncio.to_thread(self._arrival(target).finish, wanted)
        finally:
            self._arrivals.pop(target, None)
        self._whole[target] = wanted

    def _found_whole(self, target: Path) -> list[Listed] | None:
        """What has arrived there, unless somebody took it away since."""
        return self._whole.get(target) if target.exists() else None

    def _forget(self, target: Path) -> None:
        """Count nothing as there any more that is, or lies in, what is replaced or taken away."""
        self._whole = {place: found for place, found in self._whole.items() if not place.is_relative_to(target)}

    async def _tell_brought(self, _request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"is_all": self.begun.is_set(), "paths": self._brought})

    async def _be_reported(self, request: web.BaseRequest) -> web.StreamResponse:
        place = self.place(self._directory) / f"node-{int(request.query['node'])}" / "log.txt"
        offset, more = int(request.query["offset"]), await request.read()

        def append() -> None:
            place.parent.mkdir(exist_ok=True)
            with place.open("ab") as log:
                if log.tell() == offset:
                    log.write(more)

        await asyncio.to_thread(append)
        if int(request.query.get("code", "0")):
            self.failed.set()
        return web.json_response({"is_stopped": self.stopped.is_set()})

    async def _taken(self, request: web.BaseRequest) -> web.StreamResponse:
        path = json.loads(await request.read())["path"]
        if path in self._offers:
            self._offers.pop(path).set()
            # Nobody reads it here: who resumes from it is another job.
            await self._clear_away(path)
        return web.json_response({})

    async def _drop(self, request: web.BaseRequest) -> web.StreamResponse:
        named = json.loads(await request.read())["path"]
        await self._clear_away(named)
        self._brought = [each for each in self._brought if each != named]
        return web.json_response({})

    async def _clear_away(self, named: str) -> None:
        self._forget(self.place(Path(named)))
        await asyncio.to_thread(disk.clear_away, self.place(Path(named)))

    async def _status(self, request: web.BaseRequest) -> web.StreamResponse:
        directory, told = self.place(self._directory), json.loads(await request.read())["logs"]
        reports = {name: content for name in _REPORTS if (content := _read(directory / name)) is not None}
        fault = _read(scratch(directory) / "fault.json")  # the run's own to write
        heart = directory / "heartbeat"
        return web.json_response(
            {
                "has_begun": self.begun.is_set(),
                "reports": reports,
                "fault": fault,
                "heart_beats": heart.exists() and heart.stat().st_mtime_ns,
                "logs": {name: tail for name in self._logs() if (tail := self._tail(name, int(told.get(name, 0))))},
                "offers": list(self._offers),
            }
        )

    def _logs(self) -> list[str]:
        others = self.place(self._directory).glob("node-*/log.txt")
        return ["log.txt", *(f"{file.parent.name}/{file.name}" for file in others)]

    def _tail(self, name: str, offset: int) -> str:
        return base64.b64encode(tail(self.place(self._directory) / name, offset)).decode()

    def _set(self, event: asyncio.Event) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
        async def set_it(_request: web.BaseRequest) -> web.StreamResponse:
            event.set()
            return web.json_response({})

        return set_it

    @contextmanager
    def _is_going(self) -> Iterator[None]:
        self._going += 1
        try:
            yield
        finally:
            self._going -= 1

    def _arrival(self, target: Path) -> Arrival:
        return self._arrivals.setdefault(target, Arrival(target))

    def _named(self, request: web.BaseRequest) -> Path:
        return self.place(Path(request.query["path"]))


def _read(file: Path) -> Any:
    try:
        return json.loads(disk.read_regular(file, _REPORT_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def tail(file: Path, offset: int) -> bytes:
    """What was written after an offset, so much at most."""
    try:
        with file.open("rb") as opened:
            opened.seek(offset)
            return opened.read(_LOG_BYTES)
    except FileNotFoundError:
        return b""
