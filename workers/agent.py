"""What a job runs on each of its nodes: `python -m workers.agent DIRECTORY [INTERFACE]`, from its script.

It starts the replica that `job.json` in the directory describes, in the isolation that this node offers, opens the
doors that it needs, and holds the job until the replica has ended. It ends it when there is a file `stop` in the
directory, a minute before the job's time is over (SIGUSR1), and when SLURM takes the node back (SIGTERM). Without
Django: a node needs no database, only the directory, and the way to the control plane.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from aiohttp import web

from trainers.child import adopt_orphans
from trainers.distributed.node import INTERFACE_VARIABLE, NODE_VARIABLE
from workers import doors
from workers.depot import PREFIX, Depot
from workers.launchers import accounts
from workers.launchers.base import JOB_VARIABLE, End, Handle, LaunchError, LaunchSpec
from workers.launchers.local import LocalLauncher
from workers.launchers.shepherd import SUPERVISOR_VARIABLE, write_json

_POLL_S = 0.5
_ROOT = Path("/tmp/files")
"""Below a directory of the job: the files of the control plane on a node that does not share them."""
_BRINGING_S = 3600.0
"""For which an agent waits for them."""
_FETCHED_S = 300.0
"""For which it waits, after the end, until what is left was fetched."""
_TELL_S = 60.0
_COMMENT_CHARACTERS = 300
_SAVE_S = 45.0
"""For which a command may save what it has, of the minute before its time is over."""
_LEAVE_S = 15.0
_SIGNALS = {signal.SIGUSR1: End.TIME_LIMIT, signal.SIGTERM: End.CANCELLED, signal.SIGINT: End.CANCELLED}


class Agent:
    """One replica of one job."""

    def __init__(self, directory: Path, interface: str, node: int) -> None:
        # Gone from the environment before anything else starts.
        secrets = json.loads(os.environ.pop(JOB_VARIABLE))
        described = secrets["job"]
        self._directory, self._node = directory, node
        self._host, name = address_of(interface) if interface else address_towards(described["url"])
        self._spec = LaunchSpec(
            token=described["token"],
            # What the control plane looks at is of the first node.
            directory=directory / f"node-{node}" if node else directory,
            argv=[sys.executable if word == described["python"] else word for word in described["argv"]],
            environ={**secrets["environ"], NODE_VARIABLE: str(node), INTERFACE_VARIABLE: name},
            reads=[Path(path) for path in described["reads"]],
            writes=[Path(path) for path in described["writes"]],
            ours=[Path(path) for path in described["ours"]],
            gpus=described["gpus"],
            network=described["network"],
            root=None if described["shared"] else _ROOT.parent / f"rollyard-{described['token']}" / _ROOT.name,
            grace_s=described["grace_s"],
            serves=Path(described["serves"]) if described["serves"] and not node else None,
            key=secrets["key"],
            asks=Path(described["asks"]) if described["asks"] and not node else None,
            url=described["url"],
        )
        self._launcher = LocalLauncher()
        self._depot = Depot(self._spec.root, directory) if self._spec.root is not None else None
        if self._depot is not None:
            self._directory = self._depot.place(directory)
        self._why: End | None = None
        self._asked = asyncio.Event()

    async def run(self) -> int:
        """Start the replica and stay until it has ended. Returns 0 where its command did."""
        loop = asyncio.get_running_loop()
        for signum, end in _SIGNALS.items():
            loop.add_signal_handler(signum, self._be_asked, end)
        async with contextlib.AsyncExitStack() as opened:
            for place in filter(None, (self._spec.serves, self._spec.asks)):
                opened.callback(shutil.rmtree, _own_directory(place.parent.parent), ignore_errors=True)
            depot = self._depot
            if self._spec.asks is not None:
                before = depot.before_announcing if depot is not None else None
                await opened.enter_async_context(_asking(self._spec.asks, self._spec.url, before))
            base_url = ""
            if self._spec.serves is not None or depot is not None:
                others = (PREFIX, depot.answer) if depot is not None else None
                door = doors.to_socket(self._spec.serves, self._spec.key, self._host, others)
                base_url = await opened.enter_async_context(door)
            if depot is not None:
                self._directory.mkdir(parents=True, exist_ok=True)
                await asyncio.to_thread(tell, base_url)
                if not await self._is_brought(depot):
                    return 1
                opened.push_async_callback(self._be_fetched, depot)
            try:
                handle = await asyncio.to_thread(self._launcher.start, self._spec)
            except (LaunchError, OSError) as error:
                self._note_failed_start(str(error))
                return 1
            if self._node:
                return await self._stay(handle)
            self._write("agent.json", base_url=base_url, node=socket.gethostname(), pid=os.getpid())
            return await self._stay(handle)

    async def _is_brought(self, depot: Depot) -> bool:
        """Wait for what the replica reads; False where the job is to end first. Raises TimeoutError."""
        waits = [asyncio.create_task(event.wait()) for event in (depot.begun, depot.stopped, self._asked)]
        async with asyncio.timeout(_BRINGING_S):
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return depot.begun.is_set() and not depot.stopped.is_set() and not self._asked.is_set()

    async def _be_fetched(self, depot: Depot) -> None:
        """Stay until what is left of the replica was fetched."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FETCHED_S):
                await depot.left.wait()

    async def _stay(self, handle: Handle) -> int:
        while (seen := self._launcher.poll(handle)).alive:
            is_stopped = self._depot.stopped.is_set() if self._depot else (self._directory / "stop").exists()
            if self._why is None and is_stopped:
                self._why = End.ASKED
            if self._why is not None:
                if not self._node:
                    self._write("why.json", end=self._why)
                patience_s = _SAVE_S if self._why is End.TIME_LIMIT else _LEAVE_S
                seen = await asyncio.to_thread(self._launcher.stop, handle, patience_s)
                break
            await asyncio.sleep(_POLL_S)
        await asyncio.to_thread(self._launcher.sweep, self._spec.token, 0.0)
        return 0 if seen.exit_code == 0 else 1

    def _be_asked(self, end: End) -> None:
        self._why = self._why or end
        self._asked.set()

    def _note_failed_start(self, error: str) -> None:
        with (self._place() / "log.txt").open("a") as log:
            log.write(f"{socket.gethostname()}: {error}\n")
        self._write("exit.json", code=1, end=End.DIED)

    def _write(self, name: str, **content: Any) -> None:
        write_json(self._place() / name, {"token": self._spec.token, **content})

    def _place(self) -> Path:
        """Where on this node the replica's directory is."""
        directory = self._spec.directory
        return directory if self._depot is None else self._depot.place(directory)


def address_of(interface: str) -> tuple[str, str]:
    """The first IPv4 address of a network interface, and its name. Raises ValueError with those that there are."""
    for found in psutil.net_if_addrs().get(interface, []):
        if found.family == socket.AF_INET:
            return found.address, interface
    there = ", ".join(sorted(psutil.net_if_addrs()))
    raise ValueError(f"{socket.gethostname()} has no interface {interface!r} with an address: it has {there}")


def address_towards(url: str) -> tuple[str, str]:
    """The address of this machine by which it reaches the host of a URL, and its interface. Sends nothing."""
    there = urlsplit(url)
    port = there.port or (443 if there.scheme == "https" else 80)
    family, _, _, _, where = socket.getaddrinfo(there.hostname, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as way:
        way.connect(where)
        host: str = way.getsockname()[0]
    named = (name for name, each in psutil.net_if_addrs().items() if any(one.address == host for one in each))
    return host, next(named, "")


def _own_directory(path: Path) -> Path:
    """Make a directory of this job alone, which its sandbox may pass.

    Raises FileExistsError: the name of a job is for everybody to read, and whoever made it before us would hold our
    sockets.
    """
    path.mkdir(mode=0o700)
    accounts.show(accounts.account_of_runs(), path)
    return path


@contextlib.asynccontextmanager
async def _asking(
    place: Path, url: str, before: Callable[[web.BaseRequest, bytes], Awaitable[None]] | None
) -> AsyncIterator[None]:
    place.parent.mkdir(mode=0o700)
    accounts.show(accounts.account_of_runs(), place.parent)
    async with doors.to_url(url, place, before):
        yield


def tell(words: str) -> None:
    """Say something in the comment of our job, such as where we listen. Who may write there is the job's account."""
    job = os.environ["SLURM_JOB_ID"]
    subprocess.run(["scontrol", "update", f"JobId={job}", f"Comment={words}"], check=True, timeout=_TELL_S)


def main() -> int:
    """Be the agent of a job."""
    if len(sys.argv) not in (2, 3) or JOB_VARIABLE not in os.environ:
        sys.stderr.write("An agent is started by a job, as python -m workers.agent DIRECTORY [INTERFACE].\n")
        return 2
    # What a shepherd leaves behind when it is killed stays below us, where SLURM finds it.
    adopt_orphans()
    os.environ[SUPERVISOR_VARIABLE] = str(os.getpid())
    directory, interface = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    node = int(os.environ.get("SLURM_PROCID", "0"))
    try:
        return asyncio.run(Agent(directory, interface, node).run())
    except Exception as error:
        # Where nothing is shared, nobody else hears of it.
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            tell(f"{socket.gethostname()}: {type(error).__name__}: {error}"[:_COMMENT_CHARACTERS])
        raise


if __name__ == "__main__":
    sys.exit(main())
