"""Run one piece in a process of its own: whatever becomes of it, there is an outcome, and nothing of it is left."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workers.launchers.processes import carriers, end

ROOT = Path(__file__).parents[2]
_VARIABLE = "ROLLYARD_GPU_PIECE"
"""Every process of a piece carries it, in sessions of its own too, and is found by it."""
FAULT = "fault"
"""Among the figures of a piece that found something wrong: what."""
GRACE_S = 20.0
"""Between asking a piece that is late to end, and killing it."""
_TAIL_BYTES = 6_000


@dataclass(frozen=True)
class Outcome:
    """What became of a piece."""

    status: str
    """ok, failed, late (its deadline ended it) or skipped."""
    seconds: float = 0.0
    reason: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    output_tail: str = ""
    """Of what it printed, unless all went well."""


def run(command: Sequence[str], log: Path, deadline_s: float) -> Outcome:
    """Run a command to its end or its deadline and read the figures from its last line; `log` gets all it prints."""
    token, began = uuid.uuid4().hex, time.monotonic()
    environ = os.environ | {
        _VARIABLE: token,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYTHONUNBUFFERED": "1",
        "SPT_NOENV": "1",  # vLLM renames its processes, over the environment that we find them by
    }
    late = False
    with log.open("wb") as output:
        # A file and not a pipe: whoever a piece leaves behind would hold the pipe.
        process = subprocess.Popen(
            command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            left = end(lambda: carriers(token, _VARIABLE), GRACE_S, each_round=process.poll)
    seconds = round(time.monotonic() - began, 1)
    text = log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
    figures = _figures(text)
    fault = str(figures.pop(FAULT, "")) if figures else ""
    if late:
        reason = f"not done after {deadline_s:.0f} s"
    elif process.returncode:
        reason = fault or f"exit status {process.returncode}"
    elif figures is None:
        reason = "its last line is no JSON object"
    else:
        return Outcome("ok", seconds, figures=figures)
    if left:
        reason += f"; processes {sorted(left)} would not end"
    return Outcome("late" if late else "failed", seconds, reason, figures or {}, text)


def command_of(module: str, words: Sequence[str]) -> list[str]:
    """The command line of a program of this package."""
    return [sys.executable, "-m", f"{__package__}.{module}", *words]


def _figures(text: str) -> dict[str, Any] | None:
    lines = text.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
