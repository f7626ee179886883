"""Fetch what a run needs from the hub, by a program that has its client, before any process of the run starts."""

import subprocess
import sys

from rollouts.models import Run
from rollouts.reasons import Reason, ReasonCode
from rollouts.services.runs import life
from workers.fleet import hub
from workers.fleet.lifecycle import UnrecoverableError

_DEADLINE_S = 6 * 3600.0
"""For the largest models over a slow line."""
_MAX_CHARACTERS = 300


def fetch(run: Run) -> None:
    """Bring models and data sets into the hub's cache; instant for what is there. Raises UnrecoverableError."""
    for kind, name in hub.names_of(run.parsed):
        life.note_wait(run, Reason(ReasonCode.FETCHING, kind=kind, name=name, hours=_DEADLINE_S / 3600))
        command = [sys.executable, "-m", "trainers.storage.fetch", kind, name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
        except subprocess.TimeoutExpired:
            words = f"it took more than {_DEADLINE_S / 3600:.0f} hours"
        else:
            if done.returncode == 0:
                continue
            words = " ".join(done.stderr.strip().splitlines()[-1:])[-_MAX_CHARACTERS:]
        raise UnrecoverableError(Reason(ReasonCode.NOT_FETCHED, kind=kind, name=name, error=words))
