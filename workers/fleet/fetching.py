"""Fetch what a run needs from the hub, by a program that has its client, before any process of the run starts."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from rollouts.models import Run
from rollouts.reasons import Reason, ReasonCode
from rollouts.services.runs import life
from workers.fleet import hub
from workers.fleet.lifecycle import UnrecoverableError

_DEADLINE_S = 6 * 3600.0
"""For the largest models over a slow line."""
_SHORT_S = 5.0
"""What is there already takes no longer, and nobody has to be told of it."""
_LOOK_EVERY_S = 2.0
_MAX_CHARACTERS = 300


def fetch(run: Run, *, look: Callable[[], None]) -> None:
    """Bring models and data sets into the hub's cache; instant for what is there. `look` is called all the while: what
    it raises ends the fetching. Raises UnrecoverableError."""
    for kind, name in hub.names_of(run.parsed):
        look()
        wait = Reason(ReasonCode.FETCHING, kind=kind, name=name, hours=_DEADLINE_S / 3600)
        command = [sys.executable, "-m", "trainers.storage.fetch", kind, name]
        try:
            code, told = _run(command, look, partial(life.note_wait, run, wait))
        except subprocess.TimeoutExpired:
            words = f"it took more than {_DEADLINE_S / 3600:.0f} hours"
        else:
            if code == 0:
                continue
            words = " ".join(told.strip().splitlines()[-1:])[-_MAX_CHARACTERS:]
        raise UnrecoverableError(Reason(ReasonCode.NOT_FETCHED, kind=kind, name=name, error=words))


def _run(command: Sequence[str], look: Callable[[], None], tell: Callable[[], None]) -> tuple[int, str]:
    """Run a program to its end, or to its deadline; returns its exit code and what it complained of. `tell` is called
    once if it takes long. Raises subprocess.TimeoutExpired, and what `look` and `tell` do."""
    began, is_told = time.monotonic(), False
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as child:
        try:
            while True:
                try:
                    _, told = child.communicate(timeout=_LOOK_EVERY_S)
                    return child.returncode, told
                except subprocess.TimeoutExpired:
                    if time.monotonic() - began > _DEADLINE_S:
                        raise
                look()
                if not is_told and time.monotonic() - began > _SHORT_S:
                    tell()
                    is_told = True
        finally:
            child.kill()
