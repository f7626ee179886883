"""Workers as jobs of SLURM: given to it, listed and ended by name. They hold leases and no place of a run's own."""

import json
import uuid
from pathlib import Path
from typing import Any

from workers.launchers.base import JobSize
from workers.remote import VARIABLE
from workers.slurm import queue, templates
from workers.slurm.queue import Job

_PREFIX = "worker-"
_WORDS = ("-m", "workers.remote")


def start(home: Path, template: templates.Template, need: JobSize, given: dict[str, Any]) -> str:
    """Queue the job of a worker; returns its number. `given` as for `remote.work`. Raises SlurmRefused, SlurmAway."""
    logs = home / "logs" / "workers"
    logs.mkdir(parents=True, exist_ok=True)
    token = f"{_PREFIX}{uuid.uuid4()}"
    options = templates.options(template, need, token, logs)
    return queue.submit(options, templates.script(template, need, _WORDS), {VARIABLE: json.dumps(given)})


def listed() -> dict[str, Job]:
    """Jobs of workers that have not ended, by their tokens. Raises SlurmAway, SlurmRefused."""
    return {token: job for token, job in queue.named(_PREFIX).items() if not job.has_ended}


def stop() -> int:
    """End all of them; what they play is handed back. Returns how many there were. Raises as `listed`."""
    found = listed()
    for token in found:
        queue.cancel(token)
    return len(found)
