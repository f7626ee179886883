"""Attempts of trainers that register over the Atropos-compatible API.

    registration ─► open ─► first request for a batch: started, environments may register ─► reset: closed

What Atropos keeps in the memory of one process is rows here, so it outlives every process. What environments do is in
``services.clients``, batches on their way in ``services.deliveries``, the end in ``services.resets``.
Lock order: run -> gate of submissions -> attempts, clients, deliveries -> groups.
"""

from dataclasses import asdict, dataclass

from django.db import transaction
from django.db.models import Max, Model
from django.db.models.functions import Now

from rollouts import bell
from rollouts.errors import RunOver
from rollouts.models import Attempt, Event, Run, RunKind
from rollouts.services.groups import TAKES_GROUPS
from rollouts.services.transitions import ACTOR_LENGTH, REASON_LENGTH, record_creation, transition
from rollouts.states import RunState
from rollouts.storable import displayable

REGISTRABLE = TAKES_GROUPS | {RunState.PENDING}
TRAINER = "atropos trainer"
"""Who acts, in events. Nobody signs in: the run's key is the credential."""


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

    Raises RunOver for a run that takes no trainer any more. Locks the run's row.
    """
    if run.kind != RunKind.EXTERNAL:
        return
    with transaction.atomic():
        run = lock(run)
        if run.trainer_finished_at is not None:
            raise RunOver(f"Run {run.key} is {run.state} and takes no trainer.")
        if current(run) is None:
            open_attempt(run, terms, actor=TRAINER)
            run.epoch += 1
            run.save(update_fields=["epoch"])
        enter(run)


def enter(run: Run) -> None:
    """A trainer is there: the run is running. For a run that was pending when it registered, a later call does it."""
    transition(Run, [run.pk], to=RunState.RUNNING, expect=[RunState.STARTING], actor=TRAINER)


def open_attempt(run: Run, terms: Terms, *, actor: str, is_started: bool = False) -> Attempt:
    """The next attempt of a run that has none open. The run is locked."""
    texts = {name: displayable(text) for name, text in asdict(terms).items() if isinstance(text, str)}
    attempt = Attempt.objects.create(
        run=run,
        number=next_number(run),
        started_at=Now() if is_started else None,
        **{**asdict(terms), **texts},
    )
    reason = f"attempt {attempt.number}: {terms.num_steps} steps of {terms.batch_size} sequences"
    record_creation([attempt], run_id=run.pk, state="open", actor=actor, reason=reason)
    return attempt


def own_terms(run: Run) -> Terms:
    """Those of a run that our own trainer trains, for environments from outside."""
    config = run.parsed
    return Terms(
        batch_size=config.batch.batch_size,
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
    if run.state not in REGISTRABLE:
        raise RunOver(f"Run {run.key} is {run.state}: it takes no trainers, no environments and no groups.")


def log(row: Model, run_id: int, *, change: tuple[str, str], actor: str, reason: str) -> None:
    """Append an event about an attempt or a client, in the transaction that changes it."""
    from_state, to_state = change
    Event.objects.create(
        run_id=run_id,
        object_kind=str(row._meta.model_name),
        object_id=row.pk,
        from_state=from_state,
        to_state=to_state,
        reason=displayable(reason)[:REASON_LENGTH],
        actor=displayable(actor)[:ACTOR_LENGTH],
    )
    bell.ring_after_commit(run_id)
