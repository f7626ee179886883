"""The servers under load: a Rollyard on a fresh home, another server by its command, or one that runs already."""

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil
import psycopg

from benchmarks.wire_load.connection import Address, Connection
from controlplane.home import Home
from controlplane.up import processes

_START_DEADLINE_S = 120.0
_STOP_DEADLINE_S = 60.0
_POLL_S = 0.1
_SHOWN = 3000
"""Last characters of a log that are shown when a server does not start."""
_POSTGRES_SETTINGS = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers")


@dataclass(frozen=True)
class Server:
    """One server and the ways to it; what it does not offer is None."""

    name: str
    atropos: Address | None = None
    native: Address | None = None
    """The address of its run in the native API."""
    token: str = ""
    pid: int | None = None
    """The process whose tree is the server."""
    database_url: str = ""
    environ: dict[str, str] = field(default_factory=dict)
    """In which `rollyard` finds it; empty when it is not ours."""

    def command(self, *arguments: str) -> dict[str, Any]:
        """What a `rollyard` command prints as JSON."""
        return _command(self.environ, *arguments)

    def processes(self) -> list[psutil.Process]:
        """Every process of the server; none when its process id is not known."""
        try:
            top = psutil.Process(self.pid) if self.pid else None
            return [top, *top.children(recursive=True)] if top else []
        except psutil.NoSuchProcess:
            raise SystemExit(f"{self.name} ended under load: look at its log") from None

    def require(self, address: Address | None, what: str) -> Address:
        """The address, or the end of the program saying what is missing."""
        if address is None:
            raise SystemExit(f"{self.name} has no {what}: choose another workload")
        return address

    def database_bytes(self) -> int | None:
        """Size of the database; None without one that we may ask."""
        return self._ask("SELECT pg_database_size(current_database())") if self.database_url else None

    def facts(self) -> dict[str, str]:
        """The database settings that durability and speed depend on."""
        return {name: self._ask(f"SHOW {name}") for name in _POSTGRES_SETTINGS} if self.database_url else {}

    def _ask(self, query: str) -> Any:
        with psycopg.connect(self.database_url, connect_timeout=5) as connection:
            row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]


@contextlib.contextmanager
def rollyard(overrides: Sequence[str], homes: Path | None = None) -> Iterator[Server]:
    """`rollyard up` on a home of its own with one run of the preset `external-trainer`; everything ends afterwards.

    ``homes`` is the directory the home is made in: its disk is the one that commits wait for.
    """
    with tempfile.TemporaryDirectory(prefix="rollyard-bench-", dir=homes, ignore_cleanup_errors=True) as directory:
        os.chmod(directory, 0o711)  # PostgreSQL runs under another account when we are root
        home = Home(Path(directory) / "home")
        outer = {name: value for name, value in os.environ.items() if name not in {"DATABASE_URL", "REDIS_URL"}}
        environ = {**outer, "ROLLYARD_HOME": str(home.path), "PYTHONUNBUFFERED": "1"}
        argv = [sys.executable, "-m", "controlplane.cli.main", "up", "--port", "auto", "--json", "--quiet"]
        with (
            open(Path(directory) / "events", "w+b") as events,
            _running(argv, environ, signal.SIGINT, stdout=events) as process,
        ):
            try:
                _wait(process, lambda: "up" in _events(events), "`rollyard up`", home.path / "logs" / "up.log")
                url = _events(events)["url"]["url"]
                run = _command(environ, "launch", "external-trainer", *overrides)
                scopes = [word for scope in ("submit", "train", "read") for word in ("--scope", scope)]
                token = _command(environ, "token", "create", "bench", *scopes)["token"]
                server = Server(
                    "rollyard",
                    atropos=Address.of(run["atropos_url"]),
                    native=Address.of(f"{url}/api/v1/runs/{run['run']}"),
                    token=token,
                    pid=process.pid,
                    database_url=home.database_url,
                    environ=environ,
                )
                _wait(process, lambda: _takes_groups(server), f"run {run['run']}", home.path / "logs" / "up.log")
                yield server
            finally:
                _end(process, signal.SIGINT)
                if "url" in (told := _events(events)):
                    processes.sweep(told["url"]["id"], 5.0)


@contextlib.contextmanager
def other(command: str) -> Iterator[Server]:
    """Any server of the protocol by its command line, in which `{port}` stands for a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = shlex.split(command.replace("{port}", str(port)))
    with tempfile.NamedTemporaryFile() as log, _running(argv, dict(os.environ), signal.SIGTERM, stdout=log) as process:
        server = Server(Path(argv[0]).name, atropos=Address("127.0.0.1", port), pid=process.pid)
        _wait(process, lambda: _answers(Address("127.0.0.1", port), "/status"), command, Path(log.name))
        yield server


def running(url: str | None, native_url: str | None, run: str, token: str, pid: int | None) -> Server:
    """A server that somebody else started. Nothing of it is reset: give it a run of its own."""
    native = Address.of(f"{native_url.rstrip('/')}/api/v1/runs/{run}") if native_url else None
    return Server("running", atropos=Address.of(url) if url else None, native=native, token=token, pid=pid)


@contextlib.contextmanager
def _running(
    argv: list[str], environ: dict[str, str], stop: signal.Signals, stdout: IO[bytes]
) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(argv, env=environ, stdout=stdout, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield process
    finally:
        _end(process, stop)


def _end(process: "subprocess.Popen[bytes]", stop: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(stop)
        try:
            process.wait(_STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: "subprocess.Popen[bytes]", ready: Callable[[], bool], what: str, log: Path) -> None:
    deadline = time.monotonic() + _START_DEADLINE_S
    while not ready():
        if process.poll() is not None:
            said = log.read_text(errors="replace")[-_SHOWN:] if log.exists() else ""
            raise SystemExit(f"{what} ended with status {process.returncode} before it was ready:\n{said}")
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} was not ready within {_START_DEADLINE_S:.0f} s")
        time.sleep(_POLL_S)


def _events(file: IO[bytes]) -> dict[str, dict[str, Any]]:
    """The last event of each kind that `rollyard up` has printed."""
    lines = Path(file.name).read_text().splitlines()
    told = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    return {event["event"]: event for event in told}


def _command(environ: dict[str, str], *arguments: str) -> dict[str, Any]:
    argv = [sys.executable, "-m", "controlplane.cli.main", *arguments, "--json"]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise SystemExit(f"rollyard {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def _takes_groups(server: Server) -> bool:
    """Whether the reconciler has started the run."""
    address = server.require(server.native, "native API")
    connection = Connection(address, 10)
    try:
        answer = connection.call("GET", "", headers={"Authorization": f"Token {server.token}"})
    finally:
        connection.close()
    return answer.json()["state"] in {"starting", "running"}


def _answers(address: Address, path: str) -> bool:
    connection = Connection(address, 10)
    try:
        return connection.exchange(address.head("GET", path)).status == 200
    except OSError:
        return False
    finally:
        connection.close()
