"""What a job runs on each of its nodes: `python -m workers.agent DIRECTORY [INTERFACE]`, from its script.

It starts the replica that `job.json` in the directory describes, in the isolation that this node offers, opens the
doors that it needs, and holds the job until the replica has ended. It ends it when there is a file `stop` in the
directory, in the minute before the job's time is over (SIGUSR1), in which a trainer may save first, and when SLURM
takes the node back (SIGTERM). Without Django: a node needs no database, only the directory, and the way to the control
plane.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import psutil

from environments.disk import write_file
from trainers.child import adopt_orphans
from trainers.distributed.node import APART_VARIABLE, INTERFACE_VARIABLE, MEETING_VARIABLE, NODE_VARIABLE
from trainers.wire import TIME_OVER_VARIABLE
from workers import depot as depots
from workers import doors
from workers import meeting as meetings
from workers.depot import Depot
from workers.directories import OwnDirectory
from workers.first_node import FirstNode, find, tell
from workers.launchers import accounts
from workers.launchers.base import JOB_VARIABLE, End, Handle, LaunchError, LaunchSpec, Observation, scratch, sockets_of
from workers.launchers.local import LocalLauncher
from workers.launchers.shepherd import SUPERVISOR_VARIABLE, write_json
from workers.meeting import Meeting
from workers.nodes import NodeAway
from workers.transfers import TransferError

log = logging.getLogger(__name__)
_T = TypeVar("_T")

_POLL_S = 0.5
_FILES = "files"
"""Of the control plane, on a node that does not share them: a directory below the job's own."""
_AWAY_S = 60.0
"""Without a word from the first node, after which another ends what it runs."""
_COMMENT_CHARACTERS = 300
_TIME_OVER = "time-over"
_SAVE_S = 40.0
"""For which a trainer may save what it has, of the minute before its time is over."""
_LEAVE_S = 15.0
_SIGNALS = {signal.SIGUSR1: End.TIME_LIMIT, signal.SIGTERM: End.CANCELLED, signal.SIGINT: End.CANCELLED}


class Agent:
    """One replica of one job."""

    def __init__(self, directory: Path, interface: str, node: int) -> None:
        # Gone from the environment before anything else starts.
        secrets = json.loads(os.environ.pop(JOB_VARIABLE))
        described = secrets["job"]
        self._directory, self._node, self._key = directory, node, secrets["key"]
        self._host, name = address_of(interface) if interface else address_towards(described["url"])
        own = _own_place(self._key, node)
        variables = {**secrets["environ"], NODE_VARIABLE: str(node), INTERFACE_VARIABLE: name}
        variables |= {TIME_OVER_VARIABLE: str(scratch(directory) / _TIME_OVER)}
        self._is_server = bool(described["serves"])
        self._meeting = own / "meet" / "ranks.sock" if described["nodes"] > 1 else None
        if self._meeting is not None:
            variables |= {MEETING_VARIABLE: str(self._meeting)}
            variables |= {} if described["shared"] else {APART_VARIABLE: "1"}
        self._spec = LaunchSpec(
            # A token of its own: a shepherd ends whoever carries its token, and the nodes may be one machine.
            token=f"{described['token']}-{node}" if node else described["token"],
            # What the control plane looks at is of the first node.
            directory=directory / f"node-{node}" if node else directory,
            argv=[sys.executable if word == described["python"] else word for word in described["argv"]],
            environ=variables,
            reads=[*(Path(path) for path in described["reads"]), *([self._meeting.parent] if self._meeting else [])],
            writes=[Path(path) for path in described["writes"]],
            ours=[own, *(Path(path) for path in described["ours"])],
            gpus=described["gpus"],
            network=described["network"],
            root=None if described["shared"] else own / _FILES,
            grace_s=described["grace_s"],
            sends=described["sends"],
            serves=Path(described["serves"]) if described["serves"] and not node else None,
            asks=Path(described["asks"]) if described["asks"] and not node else None,
            url=described["url"],
        )
        self._launcher = LocalLauncher()
        self._depot = Depot(self._spec.root, directory) if self._spec.root is not None else None
        self._first: FirstNode | None = None
        self._heard_at = time.monotonic()
        """From the first node."""
        self._why: End | None = None
        self._is_taken = False
        """Whether SLURM takes the node back now."""
        self._was_away = False
        """Whether the disk was, which is said once."""
        self._asked = asyncio.Event()

    async def run(self) -> int:
        """Start the replica and stay until it has ended. Returns 0 where its command did."""
        loop = asyncio.get_running_loop()
        for signum, end in _SIGNALS.items():
            loop.add_signal_handler(signum, self._be_asked, end)
        async with contextlib.AsyncExitStack() as opened:
            places = [place for place in (self._spec.serves, self._spec.asks, self._meeting) if place is not None]
            for own in {place.parent.parent for place in places}:
                await asyncio.to_thread(_make_own, own, opened)
            base_url = await self._join(opened) if self._node else await self._open(opened)
            if self._depot is not None:
                self._place().mkdir(parents=True, exist_ok=True)
                if not await self._is_brought(self._depot):
                    return 1
                if not self._node:
                    opened.push_async_callback(self._depot.be_fetched)
            try:
                handle = await asyncio.to_thread(self._launcher.start, self._spec)
            except (LaunchError, OSError) as error:
                self._note_failed_start(str(error))
                if self._first is not None:
                    await self._report(self._first, code=1)
                return 1
            if not self._node:
                self._write("agent.json", base_url=base_url, pid=os.getpid())
            return await self._stay(handle)

    async def _open(self, opened: contextlib.AsyncExitStack) -> str:
        """Open the doors of the first node; returns where it listens, if it does."""
        depot, answers = self._depot, dict[str, Any]()
        if self._spec.asks is not None:
            held = doors.Held(depots.ANNOUNCEMENTS, depot.before_announcing) if depot is not None else None
            _show(self._spec.asks)
            await opened.enter_async_context(doors.to_url(self._spec.url, self._spec.asks, held))
        if depot is not None:
            answers[depots.PREFIX] = depot.answer
        if self._meeting is not None:
            answers[meetings.PREFIX] = Meeting().answer
            _show(self._meeting)
            ours = {meetings.PREFIX: answers[meetings.PREFIX]}
            await opened.enter_async_context(doors.to_answers(self._meeting, ours))
        if self._spec.serves is None and not answers:
            return ""
        door = doors.to_socket(self._spec.serves, self._key, self._host, answers)
        base_url = await opened.enter_async_context(door)
        if answers:
            await asyncio.to_thread(tell, base_url)
        return base_url

    async def _join(self, opened: contextlib.AsyncExitStack) -> str:
        """Find the first node, and open the way on which the ranks of this one meet those of the others."""
        self._first = await asyncio.to_thread(find, self._key, self._node)
        assert self._meeting is not None
        _show(self._meeting)
        way = doors.to_first_node(self._first.url, self._key, meetings.PREFIX, self._meeting)
        await opened.enter_async_context(way)
        return ""

    async def _is_brought(self, depot: Depot) -> bool:
        """Wait for what the replica reads; False where the job is to end first. Raises TimeoutError."""
        if self._first is not None:
            await self._first.bring(depot)
            return not self._asked.is_set()
        return await depot.is_brought([each["path"] for each in self._spec.sends], unless=self._asked)

    async def _stay(self, handle: Handle) -> int:
        while (seen := await self._look(handle)).alive:
            if self._why is None and await self._is_stopped():
                self._why = End.ASKED
            if self._why is None and self._depot is not None and self._depot.failed.is_set():
                self._why = End.DIED
            if self._why is not None:
                if not self._node:
                    await self._unless_away(lambda: self._write("why.json", end=self._why), None)
                if self._why is End.TIME_LIMIT and not self._is_server:
                    await self._let_save(handle)
                seen = await asyncio.to_thread(self._launcher.stop, handle, _LEAVE_S)
                break
            await asyncio.sleep(_POLL_S)
        if not self._node and not (self._place() / "exit.json").exists():
            # Its shepherd died without a word, and who carries what is said here waits for one.
            self._write("exit.json", code=None, end=self._why or seen.end)
        await asyncio.to_thread(self._launcher.sweep, self._spec.token, 0.0)
        is_well = seen.exit_code == 0
        if self._first is not None and self._depot is not None:
            # Once the first node knows, it ends its own in order. Of a node that fails srun would kill the others.
            return 0 if await self._report(self._first, code=0 if is_well else 1) is not None else 1
        if self._depot is not None:
            self._depot.stopped.set()  # the other nodes have nobody left to work with
        return 0 if is_well else 1

    async def _let_save(self, handle: Handle) -> None:
        """Tell a trainer that its time is over, and wait until it has saved what it has, and left."""
        if not self._node:
            with contextlib.suppress(OSError):
                write_file(scratch(self._place()) / _TIME_OVER, b"")
        give_up_at = time.monotonic() + _SAVE_S
        while (await self._look(handle)).alive and time.monotonic() < give_up_at:
            if self._is_taken or await self._is_stopped():
                break
            await asyncio.sleep(_POLL_S)

    async def _is_stopped(self) -> bool:
        """Whether the control plane wants the replica to end; where the first node alone hears that, its agent says."""
        if self._depot is None:
            return await self._unless_away((self._directory / "stop").exists, False)
        if self._first is None:
            return self._depot.stopped.is_set()
        if (is_stopped := await self._report(self._first)) is not None:
            self._heard_at = time.monotonic()
            return is_stopped
        return time.monotonic() - self._heard_at > _AWAY_S

    async def _look(self, handle: Handle) -> Observation:
        return await self._unless_away(lambda: self._launcher.poll(handle), Observation(True))

    async def _unless_away(self, ask: Callable[[], _T], otherwise: _T) -> _T:
        """What the disk says; while it is away, as a shared home may be for a while, what is said in its place. So the
        replica goes on, and SLURM can still end it. Where the disk hangs, the doors do not."""
        try:
            return await asyncio.to_thread(ask)
        except OSError as error:
            if not self._was_away:
                log.warning("%s: the replica goes on all the same: %s", socket.gethostname(), error)
            self._was_away = True
            return otherwise

    async def _report(self, first: FirstNode, code: int | None = None) -> bool | None:
        """Tell the first node what is new here; returns whether the replica is to end, None where it did not answer."""
        try:
            return await asyncio.to_thread(first.report, self._place() / "log.txt", code)
        except (NodeAway, TransferError):
            return None

    def _be_asked(self, end: End) -> None:
        self._why = self._why or end
        self._is_taken |= end is End.CANCELLED
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
    """The address of this machine by which it reaches the host of a URL, and its interface. Sends nothing.

    One of IPv4 where there is a way by that, as with `address_of`. Raises OSError.
    """
    there = urlsplit(url)
    port = there.port or (443 if there.scheme == "https" else 80)
    found = socket.getaddrinfo(there.hostname, port, type=socket.SOCK_DGRAM)
    faults = list[OSError]()
    for family, _, _, _, where in sorted(found, key=lambda each: each[0] != socket.AF_INET):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as way:
                way.connect(where)
                host: str = way.getsockname()[0]
        except OSError as error:  # no route by this family
            faults.append(error)
            continue
        named = (name for name, each in psutil.net_if_addrs().items() if any(one.address == host for one in each))
        return host, next(named, "")
    raise faults[0]


def _own_place(key: str, node: int) -> Path:
    """Of the other nodes another: they may be one machine."""
    place = sockets_of(key)
    return place.with_name(f"{place.name}-{node}") if node else place


def _make_own(path: Path, opened: contextlib.AsyncExitStack) -> None:
    """Make a directory of this job alone, which its sandbox may pass. Raises FileExistsError."""
    opened.callback(OwnDirectory(path).remove)
    accounts.show(accounts.account_of_runs(), path)


def _show(socket_place: Path) -> None:
    """Make the directory of a socket that the sandbox may use."""
    socket_place.parent.mkdir(mode=0o700)
    accounts.show(accounts.account_of_runs(), socket_place.parent)


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
