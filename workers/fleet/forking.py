"""Checkpoints as models, made by a program that has torch: for people, for policy version 0 of a forked run, and for
those that an eval run measures.

checkpoint of the source, verified  ->  python -m trainers.storage.export  ->  weights/step_N of the run, durable
"""

import logging
import os
import secrets
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rollouts.models import Checkpoint, PolicyVersion, Run, TrustKind
from rollouts.reasons import Reason, ReasonCode
from rollouts.services import trust
from rollouts.services.runs.forks import name_of
from trainers.errors import CheckpointCorrupt
from trainers.storage.durable import find_directory, verify_directory, write_directory
from workers.database import give_back
from workers.directories import OwnDirectory
from workers.fleet import hub
from workers.fleet.lifecycle import UnrecoverableError, own_places
from workers.launchers import accounts, confinement
from workers.launchers.limits import LimitExceeded
from workers.launchers.sandbox import SandboxUnavailable

log = logging.getLogger(__name__)

_DEADLINE_S = 3600.0
_MAX_CHARACTERS = 300


class ExportFailed(Exception):
    """A checkpoint could not be made a model; the message says why, the reason so that programs know."""

    def __init__(self, message: str, reason: Reason | None = None) -> None:
        super().__init__(message)
        self.reason = reason or Reason(ReasonCode.FORK_FAILED, error=message)


def export(checkpoint: Checkpoint, directory: Path, *, dtype: str, look: Callable[[], None] = lambda: None) -> None:
    """Fill an empty directory with the checkpoint's model, after hashing every byte of it. `look` is called all the
    while: what it raises ends the export. Raises ExportFailed."""
    give_back()
    try:
        verify_directory(Path(checkpoint.path), checkpoint.manifest_sha256)
    except CheckpointCorrupt as error:
        raise ExportFailed(str(error)) from None
    if untrusted := [need for need in trust.missing_of(checkpoint.run) if need.kind is TrustKind.REMOTE_CODE]:
        raise ExportFailed(f"{name_of(checkpoint)} {trust.fault(untrusted[0])}")
    try:
        done = _run_export(checkpoint, directory, dtype, look)
    except subprocess.TimeoutExpired:
        raise ExportFailed(f"{name_of(checkpoint)} was not exported within {_DEADLINE_S:.0f} s") from None
    except LimitExceeded as error:
        reason = Reason(ReasonCode.LIMIT_EXCEEDED, exit_code=None, **error.excess._asdict())
        raise ExportFailed(f"{name_of(checkpoint)} cannot be exported: {reason}", reason) from None
    except SandboxUnavailable as error:
        raise ExportFailed(str(error)) from None
    if done.returncode != 0:
        words = " ".join(done.stderr.strip().splitlines()[-1:])[-_MAX_CHARACTERS:]
        raise ExportFailed(f"{name_of(checkpoint)} cannot be exported: {words}")


def _run_export(
    checkpoint: Checkpoint, directory: Path, dtype: str, look: Callable[[], None]
) -> "subprocess.CompletedProcess[str]":
    """Export in a sandbox, for the model may bring code along; what that leaves is moved out if it is plain files."""
    config = checkpoint.run.parsed.model
    with OwnDirectory(directory.parent / f"rollyard-export-{secrets.token_hex(6)}") as own:
        accounts.show(accounts.account_of_runs(), own.path)
        scratch, made = own.path / "scratch", own.path / "scratch" / "model"
        scratch.mkdir(mode=0o700)
        reads = [Path(checkpoint.path), *hub.places(config.path, "model"), *hub.places(config.lora.path, "model")]
        room = confinement.make(scratch, reads=reads, writes=[made], ours=own_places())
        command = [sys.executable, "-m", "trainers.storage.export", checkpoint.path, str(made)]
        command += ["--model", config.model_dump_json(), "--dtype", dtype]
        environ = {"HF_HUB_CACHE": str(hub.cache())}
        done = confinement.run(room, command, scratch, timeout_s=_DEADLINE_S, environ=environ, look=look)
        if done.returncode == 0:
            for path in made.iterdir():
                if stat.S_ISREG(path.lstat().st_mode):
                    os.chown(path, os.geteuid(), os.getegid(), follow_symlinks=False)
                    path.rename(directory / path.name)
    return done


def make_start(run: Run, *, look: Callable[[], None]) -> None:
    """Make the weights that a fork starts from. Idempotent. Does nothing for a run that is no fork.

    `look` is as that of `export`. Raises UnrecoverableError.
    """
    first = PolicyVersion.objects.filter(run=run).exclude(checkpoint=None).order_by("version").first()
    if first is not None:
        make_version(run, first, look=look)
    elif run.forked_from is not None:
        _make(run, run.forked_from, 0, look)


def make_version(run: Run, version: PolicyVersion, *, look: Callable[[], None]) -> None:
    """Make the weights of a version that is a checkpoint of another run. Idempotent.

    `look` is as that of `export`. Raises UnrecoverableError.
    """
    if version.checkpoint is not None:
        _make(run, version.checkpoint, version.version, look)


def _make(run: Run, checkpoint: Checkpoint, version: int, look: Callable[[], None]) -> None:
    """In float32, so that nothing is lost."""
    weights = run.directory / "weights"
    give_back()
    if find_directory(weights, version):
        return
    log.info("run %s: exporting %s", run.key, name_of(checkpoint))

    def write(path: Path) -> None:
        export(checkpoint, path, dtype="float32", look=look)

    try:
        write_directory(weights, version, write, epoch=0, run=run.key)
    except ExportFailed as error:
        raise UnrecoverableError(error.reason) from error
