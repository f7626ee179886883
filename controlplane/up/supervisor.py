"""Keep a handful of processes alive and end them all.

    keep(service) ──► prepare ─► start ─► answers? ─► wait ──(it died)──► back-off ─┐
                        ▲                                                           │
                        └───────────────────────────────────────────────────────────┘
    stop(): the newest service first, stop signal, deadline, SIGKILL of its process group.

Waits for a child to end (unblocked by its death or by `stop`), never for its output: a grandchild may hold the pipe.
"""

import asyncio
import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from controlplane.up.console import Console
from controlplane.up.processes import Program, child_environ

_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.2, 10.0
_RAN_WELL_S = 5.0
"""A process that answered, or without a question to ask lived so long, starts again at once: its start had worked."""
_LONGEST_LINE_BYTES = 16_384
_POLL_S = 0.05
_FIXES = {
    errno.EAGAIN: "end other processes, or allow this account, or its container, more (ulimit -u)",
    errno.ENOMEM: "end what takes memory, or give this machine or its container more",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.ENFILE: "allow this machine more open files (sysctl fs.file-max)",
}
"""Of what keeps the system from starting a process."""


class StartError(RuntimeError):
    """A service that the rest needs did not come up."""


@dataclass
class Service:
    """A process to keep alive."""

    name: str
    prepare: Callable[[], Program]
    """Clears what an unclean end left and says what to start. Blocking; called before every start."""
    answers: Callable[[], bool] | None = None
    """Whether it serves. None: running is enough."""
    ready_deadline_s: float = 60.0
    is_coming: Callable[[], bool] | None = None
    """Whether what does not serve yet says that it is about to: then the deadline begins anew."""
    longest_delay_s: float = _LONGEST_DELAY_S
    """Between two starts, however often it ended at once."""
    pass_fds: Sequence[int] = ()
    process: asyncio.subprocess.Process | None = None
    program: Program | None = None
    ending: bool = False
    """Asked to end: its death is no accident."""
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None


class Supervisor:
    """Owns the children of one `rollyard up`. All methods run on the main thread's event loop (see `child.py`)."""

    def __init__(self, up_id: str, environ: Mapping[str, str], directory: Path, console: Console) -> None:
        self._up_id = up_id
        self._environ = environ
        self._directory = directory
        self._console = console
        self._services: list[Service] = []
        self._stopping = False
        self._deadline_factor = 1.0

    @property
    def pids(self) -> set[int]:
        """The direct children that are meant to live."""
        return {each.process.pid for each in self._services if each.process and each.process.returncode is None}

    async def keep(self, service: Service) -> None:
        """Start a service, wait until it answers, and keep it alive from then on. Raises StartError."""
        self._services.append(service)
        service.task = asyncio.create_task(self._keep(service), name=service.name)
        waiter = asyncio.create_task(service.ready.wait())
        wait = partial(asyncio.wait, [waiter, service.task], timeout=service.ready_deadline_s)
        while not (await wait(return_when="FIRST_COMPLETED"))[0]:
            if service.is_coming is None or not await asyncio.to_thread(service.is_coming):
                break
            self._console.say(f"{service.name} recovers from an unclean end; waiting on")
        waiter.cancel()
        if service.task.done():
            service.task.result()
        if not service.ready.is_set():
            raise StartError(f"{service.name} does not answer after {service.ready_deadline_s:.0f} s")

    async def run(self, program: Program, on_line: Callable[[str], None] | None = None) -> int:
        """Run a program to its end and return its exit status; a stop meanwhile ends it like a service.

        Raises StartError.
        """
        service = Service(program.name, lambda: program)
        self._services.append(service)
        try:
            process = await self._start(service, program, on_line)
            return await process.wait()
        except OSError as error:
            raise StartError(f"{service.name}: {_worded(error)}") from error
        finally:
            if not self._stopping:
                self._services.remove(service)

    async def stop(self) -> None:
        """Stop all services in reverse order of their start, so that none loses a server that it still uses."""
        self._stopping = True
        for service in reversed(self._services):
            await self._end(service)

    async def stop_one(self, name: str) -> None:
        """End one service for good, before the others."""
        for service in [each for each in self._services if each.name == name]:
            await self._end(service)
            self._services.remove(service)

    def hurry(self) -> None:
        """Kill at once what a stop in progress is still waiting for: Ctrl-C was pressed again."""
        self._deadline_factor = 0.0
        for service in self._services:
            self._kill_group(service)

    async def _keep(self, service: Service) -> None:
        delay_s = _FIRST_DELAY_S
        while not self._stopping:
            # The first start may fail for good (no account, wrong version): that ends `keep`. Later ones are tried
            # again: there may be no memory or descriptor just now.
            try:
                program = await asyncio.to_thread(service.prepare)
                started_at = time.monotonic()
                process = await self._start(service, program)
            except Exception as error:
                if not service.ready.is_set():
                    raise StartError(f"{service.name}: {_worded(error)}") from error
                self._console.line(service.name, f"cannot start: {_worded(error)}", loud=True)
            else:
                probe = asyncio.create_task(self._probe(service))
                status = await process.wait()
                ran_well = probe.done() and (service.answers or time.monotonic() - started_at > _RAN_WELL_S)
                probe.cancel()
                if self._stopping or service.ending:
                    return
                if ran_well:
                    delay_s = _FIRST_DELAY_S
                self._console.event("exited", process=service.name, pid=process.pid, status=status)
                self._console.line(service.name, f"{_describe(status)}; again in {delay_s:.1f} s", loud=True)
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, service.longest_delay_s)

    async def _start(
        self, service: Service, program: Program, on_line: Callable[[str], None] | None = None
    ) -> asyncio.subprocess.Process:
        # A pipe of ours: asyncio's own would make the end of the process wait for everybody who inherited it.
        # Heard before it starts: what does not start closes it, and nothing runs that nobody hears.
        show = on_line or (lambda text: self._console.line(service.name, text))
        reading, writing = os.pipe()
        try:
            pipe = os.fdopen(reading, "rb", buffering=0)
            await asyncio.get_running_loop().connect_read_pipe(lambda: _Lines(show), pipe)
            process = await asyncio.create_subprocess_exec(
                *program.command(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                env=child_environ(self._up_id, program, self._environ),
                cwd=self._directory,
                start_new_session=True,
                pass_fds=service.pass_fds,
            )
        finally:
            os.close(writing)
        service.process, service.program = process, program
        self._console.event("started", process=service.name, pid=process.pid)
        return process

    async def _probe(self, service: Service) -> None:
        while service.answers and not await asyncio.to_thread(service.answers):
            await asyncio.sleep(_POLL_S)
        if not service.ready.is_set():
            self._console.say(f"{service.name} is ready")
        service.ready.set()
        self._console.event("ready", process=service.name, pid=service.process.pid if service.process else None)

    async def _end(self, service: Service) -> None:
        service.ending = True
        process, program = service.process, service.program
        if process and program and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(program.stop_signal)
            try:
                await asyncio.wait_for(process.wait(), program.stop_deadline_s * self._deadline_factor)
            except TimeoutError:
                self._console.line(service.name, "did not stop in time: killed", loud=True)
                self._kill_group(service)
                await process.wait()
        if service.task:
            service.task.cancel()

    @staticmethod
    def _kill_group(service: Service) -> None:
        if service.process and service.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(service.process.pid, signal.SIGKILL)


class _Lines(asyncio.Protocol):
    """Cuts a stream of bytes into lines."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_LINE_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._show(line[:_LONGEST_LINE_BYTES].decode(errors="replace").rstrip("\r"))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._rest:
            self._show(self._rest.decode(errors="replace"))


def _worded(error: Exception) -> str:
    """Why nothing was started, and what to do about it where that is known."""
    if isinstance(error, OSError) and (fix := _FIXES.get(error.errno or 0)):
        return f"{error.strerror}: {fix}"
    return str(error)


def _describe(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
