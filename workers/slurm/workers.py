"""Workers as jobs of SLURM: given to it, listed and ended by name. They hold leases and no place of a run's own.

`worker-POOL-MARK-` and a token, or without the pool where it is of none. The mark is the installation's
(`fleet.keys.mark_of_workers`): others of the same account have workers too.
"""

import json
import re
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from workers.launchers.base import JobSize
from workers.remote import VARIABLE
from workers.slurm import queue, templates
from workers.slurm.queue import Job

_PREFIX = "worker-"
_POOL = re.compile(rf"{_PREFIX}(?:(?P<pool>.+)-)?[0-9a-f]{{8}}-[0-9a-f-]{{36}}")
_WORDS = ("-m", "workers.remote")
_LOGS_KEPT_S = 7 * 86400.0
"""Since a job wrote its last line."""
_DRAIN = "USR2"
"""To a worker: begin nothing more, and end once what you play is settled."""


def start(
    home: Path,
    mark: str,
    template: templates.Template,
    need: JobSize,
    given: dict[str, Any],
    count: int,
    pool: str = "",
) -> list[str]:
    """Queue the jobs of so many workers, of a pool or of none; returns their numbers. `given` as for `remote.work`.
    Raises SlurmRefused, SlurmAway."""
    logs = home / "logs" / "workers"
    logs.mkdir(parents=True, exist_ok=True)
    _forget_old_logs(logs, set(listed(mark)))
    name = f"{_PREFIX}{pool}-{mark}" if pool else f"{_PREFIX}{mark}"
    return [_start(logs, template, need, given, name) for _ in range(count)]


def _start(logs: Path, template: templates.Template, need: JobSize, given: dict[str, Any], name: str) -> str:
    token = f"{name}-{uuid.uuid4()}"
    options = templates.options(template, need, token, logs / f"{token}.txt")
    script = templates.script(template, need, _WORDS, ignored=[_DRAIN])
    return queue.submit(options, script, {VARIABLE: json.dumps(given)})


def _forget_old_logs(logs: Path, living: set[str]) -> None:
    for file in logs.glob("*.txt"):
        with suppress(OSError):
            if file.stem not in living and time.time() - file.lstat().st_mtime > _LOGS_KEPT_S:
                file.unlink()


def remembered(mark: str) -> dict[str, Job]:
    """Jobs of the workers with this mark by their tokens, also those that have ended, for as long as SLURM remembers
    them (minutes). Raises SlurmAway, SlurmRefused."""
    return queue.named(f"{_PREFIX}(?:[a-z0-9-]+-)?{mark}-")


def listed(mark: str) -> dict[str, Job]:
    """Those that have not ended. Raises as `remembered`."""
    return {token: job for token, job in remembered(mark).items() if not job.has_ended}


def pool_of(token: str) -> str:
    """The pool that a worker's job is of; empty: of none."""
    match = _POOL.fullmatch(token)
    return (match and match["pool"]) or ""


def stop(mark: str) -> int:
    """End all of them; what they play is handed back. Returns how many there were. Raises as `remembered`."""
    found = listed(mark)
    for token in found:
        queue.cancel(token)
    return len(found)


def drain(token: str, job: Job) -> None:
    """End one after what it plays, or before it has begun. Raises as `remembered`."""
    if job.state == "PENDING":
        queue.cancel(token)
    else:
        queue.tell(token, _DRAIN)
