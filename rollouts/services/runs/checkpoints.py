"""Checkpoints and their files: taken from a trainer, marked as deleted. Fenced like all that a trainer writes."""

import re
from pathlib import Path

from django.db import transaction

from rollouts.errors import Invalid
from rollouts.models import Checkpoint, PolicyVersion, Run, RunKind
from rollouts.reasons import Reason, ReasonCode
from rollouts.services.runs.trainer_writes import lock_for_trainer
from rollouts.services.transitions import record_creation, transition
from rollouts.states import RUN_ACTIVE, RUN_TERMINAL, CheckpointState, PolicyVersionState
from rollouts.storable import is_storable
from trainers.wire import CheckpointIn, PolicyVersionIn

MAX_PATH = 1000


SHA256 = re.compile("[0-9a-f]{64}")


def add_checkpoint(run: Run, *, epoch: int, checkpoint: CheckpointIn) -> Checkpoint:
    """Make a complete checkpoint known, so that a trainer may resume from it. Raises Invalid for a path outside."""
    with transaction.atomic():
        run = lock_for_trainer(run, epoch)
        check_files(run, "checkpoints", checkpoint)
        if not 0 <= checkpoint.step <= run.max_steps:
            raise Invalid("No such step.", fields={"step": f"must be 0 to {run.max_steps}"})
        written = {
            "path": checkpoint.path,
            "manifest_sha256": checkpoint.manifest_sha256,
            "size_bytes": checkpoint.size_bytes,
            "epoch": epoch,
        }
        row, created = Checkpoint.objects.get_or_create(run=run, step=checkpoint.step, defaults=written)
        if created:
            record_creation([row], run_id=run.pk, state=CheckpointState.COMPLETE, actor=f"trainer:{epoch}")
        else:  # by a trainer that resumed: no more than this may be written over
            Checkpoint.objects.filter(pk=row.pk).update(**written)
            transition(Checkpoint, [row.pk], to=CheckpointState.COMPLETE, actor=f"trainer:{epoch}")
            row.refresh_from_db()
        return row


def delete_checkpoints(run: Run) -> list[Checkpoint]:
    """Mark checkpoints that the config does not keep, and return them for their files to be removed.

    Kept are the last that were written (an earlier trainer's of later steps are none that this one could resume from),
    every so many steps one, those that another run was forked from, and those that one is about to measure: not those
    that were measured. Mark first, remove after: no trainer resumes from a marked one, and nobody forks it. Locks the
    run's complete checkpoints.
    """
    config = run.parsed.trainer
    with transaction.atomic():
        complete = Checkpoint.objects.select_for_update().filter(run=run, state=CheckpointState.COMPLETE)
        # Locked in the order in which a launch locks what it is forked from.
        newest = sorted(complete.order_by("pk"), key=lambda row: (-row.epoch, -row.step))
        older = newest[config.keep_checkpoints :]
        if not older:
            return []
        forks = Run.objects.filter(forked_from__in=older).exclude(kind=RunKind.EVAL, state__in=RUN_TERMINAL)
        forked = set(forks.values_list("forked_from_id", flat=True))
        due = PolicyVersion.objects.filter(checkpoint__in=older, state=PolicyVersionState.WRITTEN)
        forked |= set(due.filter(run__state__in=RUN_ACTIVE).values_list("checkpoint_id", flat=True))
        doomed = [
            row
            for row in older
            if row.pk not in forked and not (config.keep_every and row.step % config.keep_every == 0)
        ]
        transition(
            Checkpoint,
            [row.pk for row in doomed],
            to=CheckpointState.DELETED,
            actor="reconciler",
            reason=Reason(ReasonCode.NOT_KEPT, kept=config.keep_checkpoints),
        )
    return doomed


def check_files(run: Run, folder: str, announced: CheckpointIn | PolicyVersionIn) -> None:
    """Raise Invalid unless what a trainer announces can be its own: it is later loaded, and deleted.

    The path must be that of a directory in ``folder`` of the run's directory, and no link.
    """
    root, path = run.directory / folder, Path(announced.path)
    fields = {}
    if len(announced.path) > MAX_PATH or not is_storable(announced.path) or not announced.path:
        fields["path"] = f"must have 1 to {MAX_PATH} characters, and no NUL"
    elif path.parent not in {root, root.resolve()} or path.name in {"", ".."}:
        fields["path"] = f"must be that of a directory in {root}"
    elif path.is_symlink():
        fields["path"] = "is a link: write the files where they are announced"
    if not SHA256.fullmatch(announced.manifest_sha256):
        fields["manifest_sha256"] = "must be 64 hexadecimal digits in lower case"
    if not 0 <= announced.size_bytes < 2**63:
        fields["size_bytes"] = "must be a number of bytes"
    if fields:
        raise Invalid("Nothing was stored: these files cannot be the run's.", fields=fields)
