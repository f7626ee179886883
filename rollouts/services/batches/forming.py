"""Form the batch of a step, once, and deliver it as often as it is asked for.

    candidates -> chosen (rollouts.formation) -> advantages -> hash -> stored -> sent

The run's row is locked while a batch is formed, so formation is serial per run; (run, step) and (group, replay) are
unique in the database, so neither a second batch of a step nor a second step of a group can be committed.
Lock order: run -> environments -> leases -> groups.
"""

import hashlib
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from django.db import connection, transaction
from django.db.models import F

from rollouts.crashpoints import CrashPoint, crash_point
from rollouts.errors import Conflict, RunOver, StaleEpoch, StateConflict
from rollouts.formation import Chosen
from rollouts.formats.batch_body import encode
from rollouts.models import Batch, BatchEncoding, BatchItem, Run, RunKind, ScoredGroup
from rollouts.reasons import Reason, ReasonCode
from rollouts.selectors.next_batch import Outlook, look, measure_of
from rollouts.services import metrics
from rollouts.services.batches import mixture, replays
from rollouts.services.batches.facts import facts_of, statistics_of
from rollouts.services.groups.cancelling import cancel_surplus
from rollouts.services.transitions import DB_NOW, record_creation, transition
from rollouts.states import RUN_TRAINING, BatchState, GroupState
from trainers.advantages import algorithm_advantages


@dataclass(frozen=True)
class Outgoing:
    """A stored batch on its way to a trainer."""

    batch: Batch
    body: bytes
    """In the batch's encoding."""
    token: uuid.UUID | None = None
    """The right to say that it arrived, for a trainer that cannot acknowledge; see ``services.outside.deliveries``."""

    @property
    def sha256(self) -> str:
        return self.batch.sha256


class Overtaken(StateConflict):
    """A group that a batch was to be made of was taken away meanwhile. Nothing was stored: ask again."""


def fetch(run: Run, *, epoch: int, step: int) -> Outgoing | None:
    """The batch of ``step``, formed now if enough groups are ready; None if not yet.

    The same step is the same bytes on every call, also for a later epoch that trains it again after a resume. Raises
    StaleEpoch for an older trainer, RunOver when there is nothing more to train, StateConflict when ``step`` is not the
    next one that can be formed. Locks the run's row while it forms; asking in vain locks and writes nothing.
    """
    run = Run.objects.get(pk=run.pk)
    batch = _find(run, epoch, step)
    outgoing = _form_once(run, epoch, step) if batch is None else Outgoing(batch, body_of(batch))
    if outgoing is not None:
        count_delivery(outgoing.batch, actor=f"trainer:{epoch}")
    return outgoing


def _form_once(run: Run, epoch: int, step: int) -> Outgoing | None:
    """The batch of ``step``, formed by us or by whoever was faster; None if there is not enough for one."""
    outlook = look(run, step)
    if not outlook.is_worth_forming:
        return None
    batch = formed = None
    with suppress(Overtaken), transaction.atomic():
        run = Run.objects.select_for_update(no_key=True).get(pk=run.pk)
        batch = _find(run, epoch, step)
        formed = form(run, step, outlook) if batch is None else None
    if batch is None and formed is None:
        return None
    crash_point(CrashPoint.BEFORE_SEND)
    return Outgoing(batch, body_of(batch)) if batch is not None else formed


def count_delivery(batch: Batch, *, actor: str) -> None:
    """The batch goes out: for the first time, which is a change of its state, or once more."""
    if not transition(Batch, [batch.pk], to=BatchState.DELIVERED, actor=actor, delivered_at=DB_NOW, deliveries=1):
        Batch.objects.filter(pk=batch.pk).update(deliveries=F("deliveries") + 1)


def body_of(batch: Batch) -> bytes:
    """The body of a stored batch, as it was hashed when it was formed."""
    body = encode(batch)
    if hashlib.sha256(body).hexdigest() != batch.sha256:
        raise AssertionError(f"batch {batch.pk} no longer encodes to its hash {batch.sha256}: its rows were changed")
    return body


def form(run: Run, step: int, outlook: Outlook, *, encoding: BatchEncoding = BatchEncoding.MSGPACK) -> Outgoing | None:
    """Store the batch of ``step``, or nothing if there is none yet. Groups that are too old for it become stale.

    The caller holds the lock on the run's row, in a transaction, and checked that the batch does not exist. Then what
    ``outlook`` chose without a lock still stands, because nothing but forming moves the mixture; unless somebody was
    faster with one of its groups: raises Overtaken.
    """
    crash_point(CrashPoint.BEFORE_ASSEMBLY)
    if (source := replays.take_source(run)) is not None:
        mixture.reweigh(run, step=step + 1, clock=run.mixture_clock)
        items = source.items.order_by("position").values_list("group_id", flat=True)
        return _store(run, step, list(items), encoding, replay_of=source)
    limit = run.parsed.algorithm.max_off_policy_steps
    reason = Reason(ReasonCode.LAGGED, limit=limit, step=step)
    chosen = outlook.choice
    if outlook.stale:
        if isinstance(chosen, Chosen):  # all in one order, as acts of people lock theirs
            both = ScoredGroup.objects.filter(pk__in=[*outlook.stale, *chosen.group_ids]).order_by("pk")
            list(both.select_for_update(no_key=True).values_list("pk"))
        transition(ScoredGroup, outlook.stale, to=GroupState.STALE, actor="control plane", reason=reason)
    if not isinstance(chosen, Chosen):
        return None
    mixture.advance(run, chosen)
    mixture.reweigh(run, step=step + 1, clock=chosen.clock)
    if run.parsed.batch.oversampling > 1:
        cancel_surplus(run, step=step, newest=max(chosen.group_ids), measure=measure_of(run))
    moved = transition(
        ScoredGroup,
        chosen.group_ids,
        to=GroupState.BATCHED,
        actor=f"trainer:{run.epoch}",
        reason=Reason(ReasonCode.STEP, step=step),
    )
    if len(moved) != len(chosen.group_ids):
        raise Overtaken(f"Groups of step {step} were changed while its batch was formed; ask again.")
    return _store(run, step, chosen.group_ids, encoding, replay_of=None)


def check_epoch(run: Run, epoch: int) -> None:
    """Raise StaleEpoch unless ``epoch`` is the run's newest. Only sound while the run's row is locked."""
    if epoch != run.epoch:
        raise StaleEpoch(
            f"Epoch {epoch} was superseded by {run.epoch}: a newer trainer registered. End without writing."
        )


def _find(run: Run, epoch: int, step: int) -> Batch | None:
    """The batch of ``step`` if it was formed. Raises what `fetch` does when the trainer may not have it."""
    check_epoch(run, epoch)
    if run.kind not in {RunKind.RL, RunKind.EXTERNAL}:
        raise Conflict(f"Run {run.key} is supervised: it has no batches.")
    if run.state not in RUN_TRAINING or step >= run.max_steps:
        raise RunOver(f"Run {run.key} is {run.state}: there is no step {step} to train.")
    newest = Batch.objects.filter(run=run).order_by("-step").first()
    formed = 0 if newest is None else newest.step + 1
    if step > formed:
        raise StateConflict(f"Step {step} cannot be formed: {formed} is the next.")
    if newest is None or step == formed:
        return None
    batch = newest if newest.step == step else Batch.objects.get(run=run, step=step)
    if batch.encoding != BatchEncoding.MSGPACK:
        raise Conflict(
            f"Step {step} went to a trainer that speaks as Atropos does, and its bytes stay what they are. If that "
            f"trainer is gone, POST /reset_data to the run's Atropos address. Then begin at step {step + 1}."
        )
    batch.run = run  # which has parsed its config already
    return batch


def _store(run: Run, step: int, group_ids: Sequence[int], encoding: BatchEncoding, replay_of: Batch | None) -> Outgoing:
    groups = facts_of(group_ids)
    algorithms = {name: run.parsed.algorithm_of(name) for name in {group.environment for group in groups}}
    advantages = [
        algorithm_advantages(
            algorithms[group.environment], group.rewards, group.lengths, group.is_cut, group.seats, group.zeroed
        )
        for group in groups
    ]
    trained = sum(
        length
        for group, values in zip(groups, advantages, strict=True)
        for length, advantage in zip(group.lengths, values, strict=True)
        if advantage is not None
    )
    # Its items first, whose foreign key is checked when the transaction commits: the row of a batch is written once,
    # with the hash of what they encode to, and nobody has the right to change that hash.
    batch = Batch(
        pk=_next_id(), run=run, step=step, epoch=run.epoch, encoding=encoding, token_count=trained, replay_of=replay_of
    )
    numbers = replays.numbers(group_ids) if replay_of else {}
    BatchItem.objects.bulk_create(
        BatchItem(
            batch=batch,
            group_id=group.group_id,
            position=position,
            replay=numbers.get(group.group_id, 0),
            advantages=values,
        )
        for position, (group, values) in enumerate(zip(groups, advantages, strict=True))
    )
    said = statistics_of(run, step, groups, is_replay=replay_of is not None)
    body = encode(batch)
    batch.sha256 = hashlib.sha256(body).hexdigest()
    batch.size_bytes = len(body)
    batch.save(force_insert=True)
    reason = Reason(ReasonCode.REPLAYED, step=replay_of.step, run=replay_of.run.key) if replay_of else None
    record_creation([batch], run_id=run.pk, state=BatchState.FORMED, actor=f"trainer:{run.epoch}", reason=reason)
    metrics.record(run, step=step, values=said)
    return Outgoing(batch, body)


def _next_id() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('rollouts_batch_id_seq')")
        return int(cursor.fetchone()[0])
