"""Attempts of trainers that register over the Atropos-compatible API.

    registration ─► OPEN ─► first request for a batch: STARTED, environments may register ─► reset: CLOSED

What Atropos keeps in the memory of one process is rows here, so it outlives every process. What environments do is in
``clients.py``, batches on their way in ``deliveries.py``, the end in ``resets.py``.
Lock order: run -> gate of submissions -> attempts, clients, deliveries -> groups.
"""

from dataclasses import asdict, dataclass

from django.db import transaction
from django.db.models import Max
from django.db.models.functions import Now

from rollouts.errors import Conflict, RunOver
from rollouts.models import Attempt, Batch, Delivery, Run, RunKind, ScoredGroup
from rollouts.reasons import Reason, ReasonCode
from rollouts.selectors.next_batch import measure_of
from rollouts.services.transitions import DB_NOW, record_creation, transition
from rollouts.states import RUN_JOINABLE, AttemptState, GroupState, RunState
from rollouts.storable import displayable

TRAINER = "atropos trainer"
"""Who acts, in events. Nobody signs in: the run's key is the credential."""


class NotRegistered(Conflict):
    """Trainer not registered. Call /register first."""


@dataclass(frozen=True)
class Terms:
    """What a trainer registers with; fields as in the model."""

    batch_size: int
    max_token_len: int
    starting_step: int
    num_steps: int
    save_checkpoint_interval: int
    checkpoint_dir: str
    wandb_group: str
    wandb_project: str


def register(run: Run, terms: Terms) -> None:
    """Open an attempt on these terms, unless one is open: then nothing changes, as with Atropos.

    What a trainer of our own protocol fetched and did not acknowledge is left behind, and that trainer is let out.
    Raises RunOver for a run that takes no trainer any more. Locks the run's row.
    """
    if run.kind != RunKind.EXTERNAL:
        return
    with transaction.atomic():
        run = lock(run)
        if run.trainer_finished_at is not None:
            raise RunOver(f"Run {run.key} is {run.state} and takes no trainer.")
        known = current(run)
        attempt = known or open_attempt(run, terms, actor=TRAINER)
        if _leave_behind(run, attempt) or known is None:
            run.epoch += 1
            run.save(update_fields=["epoch"])
        enter(run)


def _leave_behind(run: Run, attempt: Attempt) -> bool:
    """Archive the groups of batches that nobody acknowledged and that no delivery tells of; whether there were any.

    Without a delivery they would hold up every batch after them for ever. The run is locked.
    """
    left = list(
        Batch.objects.filter(run=run, step__gte=run.next_step, delivery__isnull=True).values_list("pk", flat=True)
    )
    Delivery.objects.bulk_create(
        Delivery(batch_id=pk, attempt=attempt, expires_at=Now(), abandoned_at=Now()) for pk in left
    )
    groups = ScoredGroup.objects.filter(batch_items__batch__in=left).values_list("pk", flat=True)
    reason = Reason(ReasonCode.LEFT_BEHIND, number=attempt.number)
    transition(ScoredGroup, groups, to=GroupState.SURPLUS, expect=[GroupState.BATCHED], actor=TRAINER, reason=reason)
    return bool(left)


def enter(run: Run) -> None:
    """A trainer is there: the run is running. For a run that was pending when it registered, a later call does it."""
    if run.state == RunState.STARTING:
        transition(Run, [run.pk], to=RunState.RUNNING, expect=[RunState.STARTING], actor=TRAINER)


def open_attempt(run: Run, terms: Terms, *, actor: str, is_started: bool = False) -> Attempt:
    """The next attempt of a run that has none open. The run is locked."""
    state = AttemptState.STARTED if is_started else AttemptState.OPEN
    texts = {name: displayable(text) for name, text in asdict(terms).items() if isinstance(text, str)}
    attempt = Attempt.objects.create(
        run=run,
        number=next_number(run),
        state=state,
        started_at=Now() if is_started else None,
        **{**asdict(terms), **texts},
    )
    reason = Reason(
        ReasonCode.ATTEMPT_OPENED, number=attempt.number, steps=terms.num_steps, batch_size=terms.batch_size
    )
    record_creation([attempt], run_id=run.pk, state=state, actor=actor, reason=reason)
    return attempt


def start(attempt: Attempt) -> None:
    """Its trainer asked for a batch: environments may register. Nothing happens if it had asked before."""
    reason = Reason(ReasonCode.BATCH_ASKED_FOR)
    transition(Attempt, [attempt.pk], to=AttemptState.STARTED, actor=TRAINER, reason=reason, started_at=DB_NOW)


def close(attempt: Attempt, *, actor: str) -> None:
    """It was reset."""
    reason = Reason(ReasonCode.ATTEMPT_RESET)
    transition(Attempt, [attempt.pk], to=AttemptState.CLOSED, actor=actor, reason=reason, closed_at=DB_NOW)


def own_terms(run: Run) -> Terms:
    """Those of a run that our own trainer trains, for environments from outside."""
    config = run.parsed
    return Terms(
        batch_size=measure_of(run).groups_per_batch * config.smallest_group,
        max_token_len=config.trainer.seq_len,
        starting_step=0,
        num_steps=run.max_steps,
        save_checkpoint_interval=config.trainer.checkpoint_every,
        checkpoint_dir=str(run.directory / "checkpoints"),
        wandb_group=run.key,
        wandb_project=run.project.slug,
    )


def current(run: Run) -> Attempt | None:
    """The open attempt."""
    return Attempt.objects.filter(run=run, closed_at__isnull=True).first()


def next_number(run: Run) -> int:
    """The number of the attempt that is opened next."""
    newest: int | None = Attempt.objects.filter(run=run).aggregate(newest=Max("number"))["newest"]
    return (newest or 0) + 1


def lock(run: Run) -> Run:
    """The run, locked. Raises RunOver when it takes part in nothing any more."""
    run = Run.objects.select_for_update(no_key=True).get(pk=run.pk)
    check_takes_part(run)
    return run


def check_takes_part(run: Run) -> None:
    """Raise RunOver for a run that is over or about to be."""
    if run.state not in RUN_JOINABLE:
        raise RunOver(f"Run {run.key} is {run.state}: it takes no trainers, no environments and no groups.")


def open_of(run: Run) -> Attempt:
    """The open attempt of a run whose trainer asks for a batch. Raises RunOver and NotRegistered."""
    check_takes_part(run)
    if (attempt := current(run)) is None:
        raise NotRegistered
    return attempt


def enter_open(run: Run) -> tuple[Run, Attempt]:
    """The run, locked, and its open attempt, whose trainer is there and asked for a batch. Raises as `open_of` does."""
    run = Run.objects.select_for_update(no_key=True).get(pk=run.pk)
    attempt = open_of(run)
    enter(run)
    if attempt.state == AttemptState.OPEN:
        start(attempt)
    return run, attempt
