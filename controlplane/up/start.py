"""`rollyard up`: every process of one installation under one supervisor.

lock the home ─► end what a previous `up` left ─► open the port, print the URL ─► postgres, redis ─► prepare
(migrate, static files, admin) ─► web, worker, reconciler ─► wait for a signal or a job's end
─► reconciler stops the replicas ─► sweep ─► worker, web, redis, postgres
"""

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

from controlplane import safety
from controlplane.home import OWNER_ONLY, Home
from controlplane.up import embedded, processes
from controlplane.up.console import Console
from controlplane.up.listening import allowed_hosts, for_runs, for_workers, listening_on, local_host, shown_host
from controlplane.up.processes import Program
from controlplane.up.supervisor import Service, StartError, Supervisor
from controlplane.web import login_token, share
from environments.disk import write_file
from workers import remote
from workers.launchers import confinement

_DEFAULT_GATEWAY_PORT = 8001
_DEFAULT_PORT = 8000
_POSTGRES_DELAY_S = 1.0
"""Between two starts of PostgreSQL at most: on a full disk it ends until there is space, and then all wait for it."""
_REPLICAS_DEADLINE_S = 20.0
"""Seconds that replicas get to end by themselves before they are killed."""
_OWNER_URL_VARIABLE = "DATABASE_OWNER_URL"
_UP_PID_VARIABLE = "ROLLYARD_UP_PID"
"""Read by the shepherds of replicas, which end their command when this process is gone."""
MANAGE = (sys.executable, "-m", "controlplane.cli.main")


class AlreadyUp(RuntimeError):
    """Another `rollyard up` holds this home."""


@dataclass(frozen=True)
class Options:
    """What `rollyard up` was asked for."""

    host: str = "127.0.0.1"
    port: int | None = None
    """None: 8000, or any free port when that is taken. 0: any free port."""
    gateway_port: int | None = None
    """Of the gateway for sessions. None: 8001, or any free port when that is taken or the web's is any. 0: any."""
    concurrency: int = 8
    """Episode drivers: tasks the worker runs side by side. 0: there is no worker here."""
    lines_port: int | None = None
    """Where workers on other machines reach the embedded servers; 0: any free port. None: nowhere."""
    web_processes: int = 2
    """They share the port. One takes groups in no faster than one core decodes them."""
    quiet: bool = False
    as_json: bool = False
    job: Program | None = None
    """Runs once everything is up; its end is the end of `up`, and its status too."""
    on_job_line: Callable[[str], None] | None = None
    stays: bool = False
    """Whether to stay up after the job."""


def run(home: Home, options: Options) -> int:
    """Be `rollyard up`; returns its exit status. Raises AlreadyUp and safety.UnsafeSettings."""
    os.umask(OWNER_ONLY)
    home.create()
    key = os.environ.get("ROLLYARD_SECRET_KEY") or home.secret_key()
    hosts = allowed_hosts(options.host)
    safety.refuse_unsafe(safety.installation(os.environ, home=home.path, secret_key=key, hosts=hosts))
    console = Console(home.path / "logs" / "up.log", quiet=options.quiet, as_json=options.as_json)
    with (
        _locked(home) as previous,
        listening_on(options.host, options.port, _DEFAULT_PORT, "--port") as people,
        listening_on(options.host, _gateway_port(options), _DEFAULT_GATEWAY_PORT, "--gateway-port") as sessions,
        for_runs(home) as runs,
        for_workers(options.host, options.lines_port) as lines,
        share.counts_file(options.web_processes) as counts,
    ):
        if previous and (left := processes.sweep(previous, _REPLICAS_DEADLINE_S)):
            console.say(f"ended {left} processes that a previous `rollyard up` had left")
        up = _Up(home, options, console, people, sessions, runs, lines, counts.fileno())
        return asyncio.run(up.run())


class _Up:
    def __init__(
        self,
        home: Home,
        options: Options,
        console: Console,
        people: socket.socket,
        sessions: socket.socket,
        runs: socket.socket,
        lines: socket.socket | None,
        counts_fd: int,
    ) -> None:
        self._home = home
        self._options = options
        self._console = console
        self._shared_fds = (people.fileno(), runs.fileno(), counts_fd)
        self._sessions_fd = sessions.fileno()
        self._lines_fd = lines.fileno() if lines else None
        self._lines = list(lines.getsockname()[:2]) if lines else None
        self._up_id = secrets.token_hex(8)
        port, gateway_port = (each.getsockname()[1] for each in (people, sessions))
        here, shown = local_host(options.host), shown_host(options.host)
        self._local_url, self._local_gateway_url = f"http://{here}:{port}", f"http://{here}:{gateway_port}"
        # A proxy's, where a person set it; this machine goes past that.
        self._url = os.environ.get("ROLLYARD_URL", "").rstrip("/") or f"http://{shown}:{port}"
        self._environ = {
            "ROLLYARD_HOME": str(home.path),
            "ROLLYARD_RUNS_DIR": str(home.runs),
            "ROLLYARD_URL": self._url,
            "ROLLYARD_GATEWAY_URL": os.environ.get("ROLLYARD_GATEWAY_URL") or f"http://{shown}:{gateway_port}",
            "ROLLYARD_ALLOWED_HOSTS": ",".join(allowed_hosts(options.host)),
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
            _UP_PID_VARIABLE: str(os.getpid()),
        }
        # Of the processes that live on, none needs the owner of the tables; those of the embedded servers are in files.
        self._owner_url = os.environ.pop(_OWNER_URL_VARIABLE, "")
        self._supervisor = Supervisor(self._up_id, self._environ, home.path, console)

    async def run(self) -> int:
        stop = asyncio.Event()

        def asked() -> None:
            if stop.is_set():
                self._supervisor.hurry()
            stop.set()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup: it outlives its terminal
                loop.add_signal_handler(number, asked)
        token = login_token.new()
        login_url = f"{self._url}/login/link/{token}"
        record = {
            "id": self._up_id,
            "pid": os.getpid(),
            "url": self._url,
            "local_url": self._local_url,
            "runs": self._environ["ROLLYARD_RUNS_DIR"],
            "lines": self._lines,
        }
        # Commands of other shells start workers as this one would, and look into the same cache.
        set_here = {name: os.environ[name] for name in (*remote.PASSED, *remote.CACHES) if name in os.environ}
        write_file(self._home.record_file, json.dumps({**record, "environ": set_here}).encode())
        # The port is open already: a browser that comes early waits for the web process.
        self._console.announce(
            f"Rollyard starts at {login_url} (the link signs in once; data in {self._home.path})",
            elsewhere=f"Rollyard starts at {self._url} (sign in with `rollyard login-link`; data in {self._home.path})",
        )
        self._console.event("url", login_url=login_url, home=str(self._home.path), **record)
        starting = asyncio.create_task(self._start(token))
        stopping = asyncio.create_task(stop.wait())
        status = 0
        try:
            await asyncio.wait([starting, stopping], return_when="FIRST_COMPLETED")
            if starting.done() and not stop.is_set():
                starting.result()
                status = await self._job(stopping)
        except StartError as error:
            self._console.line("rollyard", str(error), loud=True)
            status = 1
        finally:
            starting.cancel()
            await self._stop()
        return status

    async def _start(self, token: str) -> None:
        home, keep = self._home, self._supervisor.keep
        servers = []
        if not os.environ.get("DATABASE_URL"):
            prepare, answers = lambda: embedded.prepare_postgres(home), lambda: embedded.postgres_answers(home)
            recovers = partial(embedded.postgres_recovers, home)
            service = Service("postgres", prepare, answers, longest_delay_s=_POSTGRES_DELAY_S, is_coming=recovers)
            servers.append(keep(service))
        if not os.environ.get("REDIS_URL"):
            prepare, answers = lambda: embedded.prepare_redis(home), lambda: embedded.redis_answers(home)
            servers.append(keep(Service("redis", prepare, answers)))
        await asyncio.gather(*servers)
        prepare_argv = (*MANAGE, "prepare", "--login-digest", login_token.digest(token))
        owner = {_OWNER_URL_VARIABLE: self._owner_url} if self._owner_url else {}
        if status := await self._supervisor.run(Program("prepare", prepare_argv, environ=owner)):
            raise StartError(f"the database could not be prepared (status {status}); see {home.path / 'logs/up.log'}")
        # Celery warns root at every start; here root is what the person chose, and the messages are JSON.
        hushed = {"PYTHONWARNINGS": "ignore:You're running the worker"}
        worker = Program("worker", remote.celery(self._options.concurrency), environ=hushed)
        lines = Program("lines", (*MANAGE, "lines", "--fd", str(self._lines_fd)))
        gateway = Program("gateway", (*MANAGE, "gateway", "--fd", str(self._sessions_fd)))
        reconciler = Program("reconciler", (*MANAGE, "reconcile"), stop_deadline_s=_REPLICAS_DEADLINE_S)
        await asyncio.gather(
            *(keep(self._web(place)) for place in range(self._options.web_processes)),
            *([keep(Service("worker", lambda: worker))] if self._options.concurrency else []),
            *([keep(Service("lines", lambda: lines, pass_fds=[self._lines_fd]))] if self._lines_fd is not None else []),
            keep(Service("gateway", lambda: gateway, self._gateway_answers, pass_fds=[self._sessions_fd])),
            keep(Service("reconciler", lambda: reconciler)),
            self._try_sandbox(),
        )
        self._console.say(f"everything is up at {self._url}; Ctrl-C stops it")
        self._console.event("up", url=self._url)

    async def _try_sandbox(self) -> None:
        """Say at once what would otherwise be said when somebody's first run fails. All but runs works without."""
        if complaint := await asyncio.to_thread(confinement.complaint_here):
            self._console.line("rollyard", f"every run that is not external will be refused. {complaint}", loud=True)
            self._console.event("refuses_runs", reason=complaint)

    def _web(self, place: int) -> Service:
        listening, for_runs, counts = map(str, self._shared_fds)
        argv = [sys.executable, "-m", "controlplane.web.serve", "--fd", listening, "--runs-fd", for_runs]
        argv += ["--counts-fd", counts]
        web = Program(f"web-{place + 1}" if place else "web", (*argv, "--place", str(place)))
        # Whichever answers first speaks for all: they serve the same code on the same port.
        return Service(web.name, lambda: web, self._web_answers, pass_fds=self._shared_fds)

    async def _job(self, stopping: "asyncio.Task[bool]") -> int:
        """Wait for the job, or for a signal when there is none; returns the exit status."""
        status = 0
        if self._options.job:
            running = asyncio.create_task(self._supervisor.run(self._options.job, self._options.on_job_line))
            await asyncio.wait([running, stopping], return_when="FIRST_COMPLETED")
            if stopping.done():
                return 130
            status = running.result()
            if not self._options.stays:
                return status
        await stopping
        return status

    async def _stop(self) -> None:
        self._console.say("stopping")
        await self._supervisor.stop_one("reconciler")
        # Replicas are detached on purpose (a restarted reconciler adopts them), so they are nobody's children here.
        await asyncio.to_thread(self._sweep_replicas)
        await self._supervisor.stop()
        await asyncio.to_thread(processes.sweep, self._up_id, 1.0)
        self._home.record_file.unlink(missing_ok=True)
        self._console.say("stopped")
        self._console.event("stopped")

    def _sweep_replicas(self) -> None:
        if ended := processes.sweep(self._up_id, _REPLICAS_DEADLINE_S, spared=self._supervisor.pids):
            self._console.say(f"ended {ended} processes of replicas")

    def _web_answers(self) -> bool:
        return _answers(f"{self._local_url}/healthz")

    def _gateway_answers(self) -> bool:
        return _answers(f"{self._local_gateway_url}/health")


def _answers(url: str) -> bool:
    try:
        # Past a proxy that is meant for the outside world.
        with build_opener(ProxyHandler({})).open(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextlib.contextmanager
def _locked(home: Home) -> Iterator[str | None]:
    """Hold the home for this process; yields the id of the `up` before, if it did not end cleanly."""
    with home.lock_file.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = _read(home.record_file)
            where = f" as process {other['pid']} at {other['url']}" if other else ""
            raise AlreadyUp(
                f"`rollyard up` already runs on {home.path}{where}: stop it, or set ROLLYARD_HOME to another directory"
            ) from None
        record = _read(home.record_file)
        yield record["id"] if record else None


def _gateway_port(options: Options) -> int | None:
    return 0 if options.gateway_port is None and options.port is not None else options.gateway_port


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return content
