"""Create a run, move it through its life, and take the writes of its trainer.

Every write of a trainer locks the run's row and checks the fencing epoch there, so a trainer that was replaced cannot
change anything, whenever it wakes up.
"""

import re
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from rollouts.crashpoints import CrashPoint, crash_point
from rollouts.errors import Conflict, Invalid, NotFound, RunOver, StateConflict
from rollouts.models import (
    Batch,
    Checkpoint,
    Evaluation,
    Lease,
    Model,
    Project,
    Replica,
    ReplicaKind,
    Run,
    RunEnvironment,
    RunKind,
    ScoredGroup,
)
from rollouts.models.run import new_atropos_key
from rollouts.reasons import Reason, ReasonCode
from rollouts.services import forks, leases, metrics, token_values
from rollouts.services.batches import check_epoch
from rollouts.services.groups import close_gate
from rollouts.services.transitions import DB_NOW, move, record_creation, record_note, transition
from rollouts.states import (
    RUN_ACTIVE,
    RUN_TERMINAL,
    RUN_TRAINING,
    BatchState,
    CheckpointState,
    EvaluationState,
    GroupState,
    ReplicaState,
    RunState,
)
from rollouts.storable import check_fits, is_storable
from trainers.config import Resolved
from trainers.wire import CheckpointIn, CheckpointRef, PolicyVersionIn, StepAck, TrainerRegistration

MAX_PATH = 1000
SHA256 = re.compile("[0-9a-f]{64}")


def create(
    *,
    project: Project,
    user: User | None,
    resolved: Resolved,
    actor: str,
    fork: forks.Fork | None = None,
    model: Model | None = None,
) -> Run:
    """Store a run with its frozen config; the reconciler sees it and starts what it wants.

    Doors call ``services.launches``, which makes sure that its model loads; ``model`` is the registered one it starts
    from. Raises Invalid for a number that the database or its clock cannot hold: it would only break later, far from
    here. A fork is of a config that was resolved with ``fork.overrides``. Locks the checkpoint it is forked from.
    """
    config = resolved.config
    check_fits(config)
    with transaction.atomic():
        lineage = forks.hold(fork, config) if fork else {}
        run = Run.objects.create(
            **lineage,
            model=model,
            project=project,
            created_by=user,
            kind=config.kind,
            name=config.name,
            config=config.model_dump(mode="json"),
            config_origins={**resolved.origins, **({"model.path": fork.origin} if fork else {})},
            max_steps=config.max_steps,
        )
        RunEnvironment.objects.bulk_create(
            RunEnvironment(run=run, name=ref.name, args=ref.args, weight=ref.weight) for ref in config.environments
        )
        record_creation([run], run_id=run.pk, state=RunState.PENDING, actor=actor)
    return run


def request_stop(run: Run, *, actor: str, reason: str = "") -> Run:
    """Ask a run to end now: nothing more is claimed or trained, then its replicas are ended. Idempotent.

    ``reason`` is in the words of whoever asks.
    """
    asked = Reason(ReasonCode.TEXT, text=reason) if reason else Reason(ReasonCode.STOP_ASKED, actor=actor)
    if not transition(Run, [run.pk], to=RunState.STOPPING, actor=actor, reason=asked):
        run.refresh_from_db()
        if run.state not in {RunState.STOPPING, RunState.STOPPED}:
            raise StateConflict(f"Run {run.key} is {run.state}; there is nothing to stop.")
    run.refresh_from_db()
    return run


def rotate_atropos_key(run: Run, *, actor: str) -> Run:
    """Give the run's Atropos-compatible API another address; whoever knew the old one is out at once."""
    with transaction.atomic():
        run = Run.objects.select_for_update(no_key=True).get(pk=run.pk)
        run.atropos_key = new_atropos_key()
        run.save(update_fields=["atropos_key"])
        record_note(run, run_id=run.pk, actor=actor, reason=Reason(ReasonCode.ATROPOS_KEY_ROTATED))
    return run


def start(run: Run, *, actor: str = "reconciler") -> Run:
    """Its replicas are being started."""
    return move(run, to=RunState.STARTING, actor=actor, started_at=DB_NOW)


def end(run: Run, *, to: RunState, actor: str = "reconciler", reason: Reason | None = None) -> Run:
    """Close a run for good: what is left of its groups becomes surplus, its leases and open evaluations end with it.

    Call it when no process of the run is alive. A claim or a settle that is on its way is waited for. Locks the run,
    then in the order of ``services.leases`` its environments, evaluations, leases and groups.
    """
    if to not in RUN_TERMINAL:
        raise ValueError(f"{to} is not an end")
    with transaction.atomic():
        Run.objects.select_for_update(no_key=True).get(pk=run.pk)
        close_gate(run)
        list(RunEnvironment.objects.select_for_update(no_key=True).filter(run=run).order_by("id"))
        open_evaluations = Evaluation.objects.filter(run=run, state=EvaluationState.PLAYING)
        transition(
            Evaluation,
            open_evaluations.values_list("pk", flat=True),
            to=EvaluationState.EXPIRED,
            actor=actor,
            reason=Reason(ReasonCode.RUN_ENDED, state=str(to)),
            finished_at=DB_NOW,
        )
        leases.end_all(Lease.objects.filter(run=run))
        for state in (GroupState.PLAYING, GroupState.READY, GroupState.BATCHED):
            left = ScoredGroup.objects.filter(run=run, state=state).values_list("pk", flat=True)
            columns: dict[str, Any] = {"settled_at": DB_NOW} if state == GroupState.PLAYING else {}
            transition(
                ScoredGroup,
                left,
                to=GroupState.SURPLUS,
                actor=actor,
                reason=Reason(ReasonCode.RUN_ENDED, state=str(to)),
                **columns,
            )
        return move(run, to=to, actor=actor, reason=reason, finished_at=DB_NOW)


def register_trainer(run: Run, *, world_size: int, hostname: str, pid: int, actor: str) -> TrainerRegistration:
    """Let a trainer attempt in and every earlier one out: raises the fencing epoch. Locks the run's row."""
    with transaction.atomic():
        run = Run.objects.select_for_update(no_key=True).get(pk=run.pk)
        if run.state == RunState.PENDING:
            raise StateConflict(f"Run {run.key} has not been started yet. Register again in a few seconds.")
        if run.state not in RUN_TRAINING or run.trainer_finished_at is not None:
            raise RunOver(f"Run {run.key} is {run.state} and takes no trainer.")
        run.epoch += 1
        run.save(update_fields=["epoch"])
        transition(Run, [run.pk], to=RunState.RUNNING, expect=[RunState.STARTING], actor=actor)
        transition(
            Replica,
            Replica.objects.filter(run=run, kind=ReplicaKind.TRAINER).values_list("pk", flat=True),
            to=ReplicaState.READY,
            actor=actor,
            reason=Reason(
                ReasonCode.TRAINER_REGISTERED, epoch=run.epoch, world_size=world_size, hostname=hostname, pid=pid
            ),
            answered_at=DB_NOW,
        )
        checkpoints = Checkpoint.objects.filter(run=run, state=CheckpointState.COMPLETE).order_by("-step")
        source = run.forked_from if run.fork_optimizer else None
        return TrainerRegistration(
            run=run.key,
            epoch=run.epoch,
            config=run.config,
            run_dir=str(run.directory),
            checkpoints=[_reference(row) for row in checkpoints],
            optimizer_from=_reference(source) if source else None,
        )


def _reference(row: Checkpoint) -> CheckpointRef:
    return CheckpointRef(step=row.step, path=row.path, manifest_sha256=row.manifest_sha256)


def ack_step(run: Run, *, epoch: int, step: int, ack: StepAck) -> int:
    """Record that ``step`` moved the weights; return the number of acknowledged steps. Doing it again is harmless.

    Raises Conflict when the trainer trained other bytes than were stored, Invalid for metrics or token values that
    cannot be. Locks the run, the batch, its groups.
    """
    with transaction.atomic():
        run = lock_for_trainer(run, epoch)
        if step > run.next_step or step >= run.max_steps:
            raise Conflict(f"Step {step} cannot be acknowledged: {run.next_step} is the next of {run.max_steps}.")
        crash_point(CrashPoint.BEFORE_ACK)
        if run.kind != RunKind.SFT:
            batch = _ack_batch(run, epoch=epoch, step=step, sha256=ack.batch_sha256)
            token_values.store(batch, ack.token_values)
        elif ack.token_values:
            raise Invalid(fields={"token_values": "belong to rollouts, and a supervised run has none"})
        metrics.record(run, step=step, values=ack.metrics)
        if step == run.next_step:
            run.next_step = step + 1
            run.trainer_restarts = 0
            run.save(update_fields=["next_step", "trainer_restarts"])
        return run.next_step


def _ack_batch(run: Run, *, epoch: int, step: int, sha256: str | None) -> Batch:
    batch = Batch.objects.filter(run=run, step=step).first()
    if batch is None or batch.state == BatchState.FORMED:
        raise NotFound(f"Step {step} was not delivered; fetch its batch before you acknowledge it.")
    if sha256 != batch.sha256:
        raise Conflict(f"Step {step} was trained on {sha256}, but its batch is {batch.sha256}. Fetch it again.")
    actor = f"trainer:{epoch}"
    if transition(Batch, [batch.pk], to=BatchState.TRAINED, actor=actor, trained_at=DB_NOW):
        groups = batch.items.values_list("group_id", flat=True)
        transition(
            ScoredGroup,
            groups,
            to=GroupState.TRAINED,
            actor=actor,
            reason=Reason(ReasonCode.STEP, step=step),
        )
    return batch


def add_checkpoint(run: Run, *, epoch: int, checkpoint: CheckpointIn) -> Checkpoint:
    """Make a complete checkpoint known, so that a trainer may resume from it. Raises Invalid for a path outside."""
    with transaction.atomic():
        run = lock_for_trainer(run, epoch)
        check_files(run, "checkpoints", checkpoint)
        if not 0 <= checkpoint.step <= run.max_steps:
            raise Invalid("No such step.", fields={"step": f"must be 0 to {run.max_steps}"})
        row, created = Checkpoint.objects.update_or_create(
            run=run,
            step=checkpoint.step,
            defaults={
                "path": checkpoint.path,
                "manifest_sha256": checkpoint.manifest_sha256,
                "size_bytes": checkpoint.size_bytes,
                "epoch": epoch,
            },
        )
        if created:
            record_creation([row], run_id=run.pk, state=CheckpointState.COMPLETE, actor=f"trainer:{epoch}")
        return row


def lock_for_trainer(run: Run, epoch: int) -> Run:
    """The run, locked, for a write of its trainer. Raises StaleEpoch for an older trainer, RunOver after the end."""
    run = Run.objects.select_for_update(no_key=True).get(pk=run.pk)
    check_epoch(run, epoch)
    if run.state not in RUN_ACTIVE:
        raise RunOver(f"Run {run.key} is {run.state}.")
    return run


def delete_checkpoints(run: Run) -> list[Checkpoint]:
    """Mark checkpoints that the config does not keep, and return them for their files to be removed.

    Kept are the newest, every so many steps one, and those that another run was forked from. Mark first, remove after:
    no trainer resumes from a marked one, and nobody forks it. Locks the run's complete checkpoints.
    """
    config = run.parsed.trainer
    with transaction.atomic():
        complete = Checkpoint.objects.select_for_update().filter(run=run, state=CheckpointState.COMPLETE)
        older = list(complete.order_by("-step"))[config.keep_checkpoints :]
        if not older:
            return []
        forked = set(Run.objects.filter(forked_from__in=older).values_list("forked_from_id", flat=True))
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

    The path must be a directory of its own inside ``folder`` of the run's directory.
    """
    root = run.directory.resolve() / folder
    fields = {}
    if len(announced.path) > MAX_PATH or not is_storable(announced.path) or not announced.path:
        fields["path"] = f"must have 1 to {MAX_PATH} characters, and no NUL"
    elif root not in Path(announced.path).resolve().parents:
        fields["path"] = f"must lie under {root}"
    if not SHA256.fullmatch(announced.manifest_sha256):
        fields["manifest_sha256"] = "must be 64 hexadecimal digits in lower case"
    if not 0 <= announced.size_bytes < 2**63:
        fields["size_bytes"] = "must be a number of bytes"
    if fields:
        raise Invalid("Nothing was stored: these files cannot be the run's.", fields=fields)


def finish_training(run: Run, *, epoch: int) -> Run:
    """The trainer has done all its steps; publishing and evaluating the last version remains. Idempotent."""
    with transaction.atomic():
        run = Run.objects.select_for_update(no_key=True).get(pk=run.pk)
        check_epoch(run, epoch)
        close_gate(run)
        if run.next_step < run.max_steps:
            raise Conflict(f"Only {run.next_step} of {run.max_steps} steps are acknowledged.")
        actor = f"trainer:{epoch}"
        if transition(
            Run,
            [run.pk],
            to=RunState.FINISHING,
            actor=actor,
            trainer_finished_at=DB_NOW,
        ):
            left = ScoredGroup.objects.filter(run=run, state=GroupState.READY).values_list("pk", flat=True)
            transition(
                ScoredGroup,
                left,
                to=GroupState.SURPLUS,
                actor=actor,
                reason=Reason(ReasonCode.STEPS_COVERED),
            )
        run.refresh_from_db()
        return run


def count_trainer_restart(run: Run) -> int:
    """Count a trainer attempt that died; return how many died since the last step of progress."""
    with transaction.atomic():
        run = Run.objects.select_for_update(no_key=True).get(pk=run.pk)
        run.trainer_restarts += 1
        run.save(update_fields=["trainer_restarts"])
        return run.trainer_restarts
