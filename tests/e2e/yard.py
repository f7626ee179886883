"""A whole Rollyard under test: `rollyard up` in a home of its own, driven by its command line and read by plain SQL.

Nothing here imports Django: what the product says of itself is checked against what its tables hold.
"""

import atexit
import contextlib
import json
import os
import pwd
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import psutil
import psycopg

from controlplane.home import Home
from controlplane.up.processes import of_up
from tests.accounts import become, let_others_pass
from tests.patience import PATIENCE
from workers.launchers.processes import with_cwd, with_descendants

T = TypeVar("T")
POLL_S = 0.25


def until(condition: Callable[[], T | None], *, within_s: float, what: str) -> T:
    """Return the first truthy result of ``condition``; fail when there is none within the deadline."""
    deadline = time.monotonic() + PATIENCE * within_s
    while time.monotonic() < deadline:
        if result := condition():
            return result
        time.sleep(POLL_S)
    raise AssertionError(f"not within {PATIENCE * within_s:.0f} s: {what}")


class Yard:
    """One `rollyard up` and what may be asked of it."""

    def __init__(
        self,
        home: Home,
        process: subprocess.Popen[str],
        environ: dict[str, str],
        record: dict[str, Any],
        become: Sequence[str] = (),
        said: Sequence[str] = (),
    ) -> None:
        self.home = home
        self.process = process
        self.environ = environ
        self.become = become
        self.said = said
        """The lines of its stdout, as they come."""
        self.up_id: str = record["id"]
        self.url: str = record["url"]
        self.login_url: str = record["login_url"]

    def rollyard(self, *arguments: str, code: int = 0) -> Any:
        """Run a command that ends with this code and return its JSON answer."""
        done = subprocess.run(
            [*self.become, sys.executable, "-m", "controlplane.cli.main", *arguments, "--json"],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, f"rollyard {' '.join(arguments)}: {done.stderr[-2000:]}"
        return json.loads(done.stdout.strip().splitlines()[-1])

    def sql(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Rows of one query, over a connection of its own: the server may have been restarted since the last."""
        with psycopg.connect(self.home.database_url, connect_timeout=5) as connection:
            return connection.execute(query, values).fetchall()

    def try_sql(self, query: str, *values: Any) -> list[tuple[Any, ...]] | None:
        """Like `sql`, but None while the server is away."""
        try:
            return self.sql(query, *values)
        except psycopg.OperationalError:
            return None

    def state(self, run: str) -> str | None:
        rows = self.try_sql("SELECT state FROM rollouts_run WHERE key = %s", run)
        return rows[0][0] if rows else None

    def step(self, run: str) -> int:
        rows = self.try_sql("SELECT next_step FROM rollouts_run WHERE key = %s", run)
        return rows[0][0] if rows else 0

    def finish(self, *words: str) -> str:
        """Launch a run and wait until it has finished."""
        run: str = self.rollyard("launch", *words)["run"]
        until(lambda: self.state(run) in {"finished", "failed", "stopped"}, within_s=500, what="the end of the run")
        [(state, reason)] = self.sql(
            "SELECT state, reason_code || reason_params::text FROM rollouts_run WHERE key = %s", run
        )
        assert state == "finished", reason
        return run

    def metric(self, run: str, key: str) -> list[float]:
        """Every value of a metric of a run, by step."""
        query = (
            "SELECT value FROM rollouts_metricpoint AS m JOIN rollouts_run AS r ON r.id = m.run_id"
            " WHERE r.key = %s AND m.key = %s ORDER BY m.step"
        )
        return [value for (value,) in self.sql(query, run, key)]

    def processes(self) -> list[psutil.Process]:
        """Every living process of this installation: children, detached replicas, PostgreSQL's and Redis's.

        Both servers write over the environment that carries the id, so they are found as children as well.
        """
        pids = of_up(self.up_id) | with_cwd(self.home.postgres_data, "postgres")
        pids |= with_descendants({self.process.pid}) - {self.process.pid}
        found = []
        for pid in sorted(pids):
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
        return found

    def victims(self, kind: str) -> list[psutil.Process]:
        """The processes that a kill of this kind may hit."""
        found = []
        for process in self.processes():
            try:
                name, line = process.name(), " ".join(process.cmdline())
            except psutil.Error:
                continue
            if PATTERNS[kind](name, line):
                found.append(process)
        return found

    def kill_one(self, kind: str, choice: float) -> psutil.Process | None:
        """`kill -9` one of a kind, the one at this share of the list; None when there is none, or none any more."""
        found = self.victims(kind)
        try:
            target = found[int(choice * len(found))]
            target.kill()
        except (IndexError, psutil.NoSuchProcess):
            return None
        return target


def _runs(module: str) -> Callable[[str, str], bool]:
    # Shims, shepherds and sandboxes carry the command in their own arguments; a victim is the program itself.
    return lambda name, line: module in line and "child.py" not in line and "shepherd" not in line and name != "bwrap"


PATTERNS: dict[str, Callable[[str, str], bool]] = {
    "worker": _runs("celery"),
    "web": _runs("controlplane.web.serve"),
    "reconciler": _runs("controlplane.cli.main reconcile"),
    "redis": lambda _name, line: "valkey-server" in line and "child.py" not in line,
    "postgres": lambda name, line: "-D" in line.split() and line.split()[0].endswith("postgres"),
    "vllm": _runs("rollyard_server"),
    "trainer": _runs("trainers.rl"),
}


_UP = (sys.executable, "-m", "controlplane.cli.main", "up")


@contextmanager
def running_yard(
    log: Path,
    *,
    packages: Path | None = None,
    account: str = "",
    where: Path | None = None,
    options: Sequence[str] = (),
) -> Iterator[Yard]:
    """Bring a Rollyard up in a fresh home, and check when it ends that no process of it is left.

    ``packages`` is a directory to import from besides; ``account`` is whose the installation is, if not ours; the
    home is made in ``where``; ``options`` are further ones of `rollyard up`.
    """
    before = become(account) if account else []
    with tempfile.TemporaryDirectory(prefix="rollyard-e2e-", dir=where, ignore_cleanup_errors=True) as directory:
        os.chmod(directory, 0o711)  # PostgreSQL runs under another account when we are root
        if account:
            os.chown(directory, pwd.getpwnam(account).pw_uid, pwd.getpwnam(account).pw_gid)
        home = Home(Path(directory) / "home")
        environ = {
            name: value
            for name, value in os.environ.items()
            if name not in {"DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE", "ROLLYARD_SECRET_KEY"}
        }
        environ |= {"ROLLYARD_HOME": str(home.path), "PYTHONUNBUFFERED": "1"}
        if packages:
            environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(packages), environ.get("PYTHONPATH", "")]))
        if account:
            environ["HOME"] = directory
        with log.open("w") as errors:
            process = subprocess.Popen(
                [*before, *_UP, "--port", "auto", "--json", "--quiet", *options],
                env=environ,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
            events: queue.Queue[dict[str, Any]] = queue.Queue()
            said: list[str] = []
            reader = threading.Thread(target=_read, args=(process, events, said), daemon=True)
            reader.start()
            up_id, known = "", set[psutil.Process]()
            try:
                record = _next(events, log)
                up_id = record["id"]
                while _next(events, log).get("event") != "up":
                    pass
                yard = Yard(home, process, environ, record, before, said)
                yield yard
                known = set(yard.processes())
            finally:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(180)
                finally:
                    if process.poll() is None:
                        process.kill()
            left = of_up(up_id) | with_cwd(home.postgres_data, "postgres") | {each.pid for each in known if lives(each)}
            assert left == set(), "processes were left behind"


def lives(process: psutil.Process) -> bool:
    """Whether it runs: one that is dead and not reaped does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _read(process: subprocess.Popen[str], events: "queue.Queue[dict[str, Any]]", said: list[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        if line.startswith("{"):
            events.put(json.loads(line))
    events.put({})


def _next(events: "queue.Queue[dict[str, Any]]", log: Path) -> dict[str, Any]:
    event = events.get(timeout=PATIENCE * 60)
    assert event, f"`rollyard up` ended: {log.read_text()[-2000:]}"
    return event


def make_tiny_model(directory: Path, *, seed: int = 0) -> Path:
    """A random tiny model that vLLM serves and the trainer trains."""
    shutil.copytree(_made_once(seed), directory)
    # Where the tests are root, runs have an account of their own: it reads what is open to everybody.
    let_others_pass(directory.parent)
    for path in (directory, *directory.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return directory


@cache
def _made_once(seed: int) -> Path:
    """Making it loads all of torch and transformers: five seconds of a core."""
    place = tempfile.mkdtemp(prefix="rollyard-tiny-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    command = [sys.executable, "-m", "trainers.model.tiny", f"{place}/model", "--seed", str(seed)]
    subprocess.run(command, check=True, timeout=120)
    return Path(place, "model")
