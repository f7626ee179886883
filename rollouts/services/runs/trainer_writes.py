"""What the trainer of a run writes: that it is there, a step, that it is done.

Every write locks the run's row and checks the fencing epoch there, so a trainer that was replaced cannot change
anything, whenever it wakes up.
"""

from datetime import timedelta

from django.db import transaction
from django.db.models import Value
from django.db.models.functions import Now

from rollouts.crashpoints import CrashPoint, crash_point
from rollouts.errors import Conflict, Invalid, NotFound, RunOver, StateConflict
from rollouts.models import (
    Batch,
    Checkpoint,
    Event,
    PolicyVersion,
    Replica,
    ReplicaKind,
    Run,
    RunKind,
    ScoredGroup,
)
from rollouts.reasons import Reason, ReasonCode
from rollouts.services import metrics
from rollouts.services.batches.forming import check_epoch
from rollouts.services.groups.intake import close_gate
from rollouts.services.runs import token_values
from rollouts.services.transitions import DB_NOW, transition
from rollouts.states import (
    GROUP_WAITING,
    RUN_ACTIVE,
    RUN_TRAINING,
    BatchState,
    CheckpointState,
    GroupState,
    ReplicaState,
    RunState,
)
from trainers.wire import CheckpointRef, StepAck, TrainerRegistration

HEARD = timedelta(seconds=30)
"""For so long a call is not noted again."""
FORGOTTEN = timedelta(hours=1)
"""For so long a trainer from outside may announce its last weights after its last step."""


def register_trainer(run: Run, *, world_size: int, hostname: str, pid: int, actor: str) -> TrainerRegistration:
    """Let a trainer in and every earlier one out: raises the fencing epoch. Locks the run's row."""
    with transaction.atomic():
        run = Run.objects.select_for_update(no_key=True).get(pk=run.pk)
        if run.state == RunState.PENDING:
            raise StateConflict(f"Run {run.key} has not been started yet. Register again in a few seconds.")
        if run.kind == RunKind.EVAL or run.state not in RUN_TRAINING or run.trainer_finished_at is not None:
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
        hear(run, epoch=run.epoch)
        newest = PolicyVersion.objects.filter(run=run).order_by("-version").first()
        checkpoints = Checkpoint.objects.filter(run=run, state=CheckpointState.COMPLETE).order_by("-step")
        source = run.forked_from if run.fork_optimizer else None
        return TrainerRegistration(
            run=run.key,
            epoch=run.epoch,
            config=run.config,
            run_dir=str(run.directory),
            checkpoints=[_reference(row) for row in checkpoints],
            newest_version=newest.version if newest else -1,
            optimizer_from=_reference(source) if source else None,
        )


def hear(run: Run, *, epoch: int) -> None:
    """Note that the trainer of this epoch has called, if that is news: one that goes on calling does not hang. No state
    changes, so no event."""
    trainer = Replica.objects.filter(run=run, run__epoch=epoch, kind=ReplicaKind.TRAINER, state=ReplicaState.READY)
    trainer.filter(answered_at__lt=Now() - Value(HEARD)).update(answered_at=Now())


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


def lock_for_trainer(run: Run, epoch: int) -> Run:
    """The run, locked, for a write of its trainer. Raises StaleEpoch for an older trainer, RunOver after the end."""
    run = Run.objects.select_for_update(no_key=True).get(pk=run.pk)
    check_epoch(run, epoch)
    if run.state not in RUN_ACTIVE:
        raise RunOver(f"Run {run.key} is {run.state}.")
    hear(run, epoch=epoch)
    return run


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
            left = ScoredGroup.objects.filter(run=run, state__in=GROUP_WAITING).values_list("pk", flat=True)
            transition(
                ScoredGroup,
                left,
                to=GroupState.SURPLUS,
                actor=actor,
                reason=Reason(ReasonCode.STEPS_COVERED),
            )
        run.refresh_from_db()
        return run


def finish_forgotten(run: Run) -> None:
    """Finish in the place of a trainer from outside that acknowledged its last step and then said nothing more. One
    that has registered since may train steps again, and says itself when it is done. Who acknowledged is in the event:
    a batch knows for whom it was formed."""
    if run.state != RunState.RUNNING or run.next_step < run.max_steps:
        return
    last = Batch.objects.filter(run=run, step=run.max_steps - 1, trained_at__lt=Now() - Value(FORGOTTEN))
    trained = Event.objects.filter(object_kind="batch", object_id__in=last.values("pk"), to_state=BatchState.TRAINED)
    if trained.filter(actor=f"trainer:{run.epoch}").exists():
        finish_training(run, epoch=run.epoch)


def count_trainer_restart(run: Run) -> int:
    """Count a trainer that died; return how many died since the last step of progress."""
    with transaction.atomic():
        run = Run.objects.select_for_update(no_key=True).get(pk=run.pk)
        run.trainer_restarts += 1
        run.save(update_fields=["trainer_restarts"])
        return run.trainer_restarts
