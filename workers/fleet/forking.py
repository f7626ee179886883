"""Checkpoints as models, made by a program that has torch: for people, and for policy version 0 of a forked run.

checkpoint of the source, verified  ->  python -m trainers.storage.export  ->  weights/step_0 of the fork, durable
"""

import logging
import subprocess
import sys
from pathlib import Path

from rollouts.models import Checkpoint, Run
from rollouts.reasons import Reason, ReasonCode
from rollouts.services.runs.forks import name_of
from trainers.errors import CheckpointCorrupt
from trainers.storage.durable import find_directory, verify_directory, write_directory
from workers.fleet.lifecycle import UnrecoverableError

log = logging.getLogger(__name__)

_DEADLINE_S = 3600.0
_MAX_CHARACTERS = 300


class ExportFailed(Exception):
    """A checkpoint could not be made a model; the message says why."""


def export(checkpoint: Checkpoint, directory: Path, *, dtype: str) -> None:
    """Fill an empty directory with the checkpoint's model, after hashing every byte of it. Raises ExportFailed."""
    try:
        verify_directory(Path(checkpoint.path), checkpoint.manifest_sha256)
    except CheckpointCorrupt as error:
        raise ExportFailed(str(error)) from None
    model = checkpoint.run.parsed.model.model_dump_json()
    command = [sys.executable, "-m", "trainers.storage.export", checkpoint.path, str(directory)]
    command += ["--model", model, "--dtype", dtype]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        raise ExportFailed(f"{name_of(checkpoint)} was not exported within {_DEADLINE_S:.0f} s") from None
    if done.returncode != 0:
        words = " ".join(done.stderr.strip().splitlines()[-1:])[-_MAX_CHARACTERS:]
        raise ExportFailed(f"{name_of(checkpoint)} cannot be exported: {words}")


def make_start(run: Run) -> None:
    """Make the weights that a fork starts from, in float32 so that nothing is lost. Idempotent.

    Does nothing for a run that is no fork. Raises UnrecoverableError.
    """
    checkpoint, weights = run.forked_from, run.directory / "weights"
    if checkpoint is None or find_directory(weights, 0):
        return
    log.info("run %s: exporting %s", run.key, name_of(checkpoint))
    try:
        write_directory(weights, 0, lambda path: export(checkpoint, path, dtype="float32"), epoch=0, run=run.key)
    except ExportFailed as error:
        raise UnrecoverableError(Reason(ReasonCode.FORK_FAILED, error=str(error))) from error
