"""Form the batch of a step, once, and deliver it as often as it is asked for.

    candidates -> chosen (rollouts.formation) -> advantages -> hash -> stored -> sent

The run's row is locked while a batch is formed, so formation is serial per run; (run, step) and (group, replay) are
unique in the database, so neither a second batch of a step nor a second step of a group can be committed.
Lock order: run -> environments -> groups.
"""

import hashlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from django.db import transaction
from django.db.models import F, QuerySet

from environments.types import StopReason
from rollouts.batch_body import encode
from rollouts.crashpoints import CrashPoint, crash_point
from rollouts.errors import Conflict, RunOver, StaleEpoch, StateConflict
from rollouts.formation import Chosen, Demand, Stuck, Waiting
from rollouts.models import Batch, BatchEncoding, BatchItem, Rollout, Run, RunEnvironment, RunKind, ScoredGroup
from rollouts.selectors.next_batch import demand_of, preview
from rollouts.services import metrics, replays
from rollouts.services.transitions import DB_NOW, record_creation, transition
from rollouts.states import BatchState, GroupState, RunState
from trainers.advantages import algorithm_advantages

TRAINING = frozenset({RunState.STARTING, RunState.RUNNING})


@dataclass(frozen=True)
class Delivery:
    """A batch as it goes over the wire."""

    body: bytes
    """MessagePack of a TrainingBatch."""
    sha256: str


@dataclass(frozen=True)
class Formed:
    """A batch that was just stored, and its body."""

    batch: Batch
    body: bytes


def fetch(run: Run, *, epoch: int, step: int) -> Delivery | None:
    """The batch of ``step``, formed now if enough groups are ready; None if not yet.

    The same step is the same bytes on every call, also for a later epoch that trains it again after a resume. Raises
    StaleEpoch for an older trainer, RunOver when there is nothing more to train, StateConflict when ``step`` is not the
    next one that can be formed. Locks the run's row while it forms; asking in vain locks and writes nothing.
    """
    run = Run.objects.get(pk=run.pk)
    batch = _find(run, epoch, step)
    body = None
    if batch is None:
        if not _is_worth_forming(run, step):
            return None
        with transaction.atomic():
            run = Run.objects.select_for_update(no_key=True).get(pk=run.pk)
            batch = _find(run, epoch, step)
            if batch is None:
                formed = form(run, step, demand_of(run))
                if not isinstance(formed, Formed):
                    return None
                batch, body = formed.batch, formed.body
        crash_point(CrashPoint.BEFORE_SEND)
    if body is None:
        body = body_of(batch)
    transition(Batch, [batch.pk], to=BatchState.DELIVERED, actor=f"trainer:{epoch}", delivered_at=DB_NOW)
    Batch.objects.filter(pk=batch.pk).update(deliveries=F("deliveries") + 1)
    return Delivery(body=body, sha256=batch.sha256)


def body_of(batch: Batch) -> bytes:
    """The body of a stored batch, as it was hashed when it was formed."""
    body = encode(batch)
    if hashlib.sha256(body).hexdigest() != batch.sha256:
        raise AssertionError(f"batch {batch.pk} no longer encodes to its hash {batch.sha256}: its rows were changed")
    return body


def form(
    run: Run, step: int, demand: Demand, *, encoding: BatchEncoding = BatchEncoding.MSGPACK
) -> Formed | Waiting | Stuck:
    """Store the batch of ``step``, or say why there is none yet. Groups that are too old for it become stale.

    The caller holds the lock on the run's row, in a transaction, and checked that the batch does not exist.
    """
    crash_point(CrashPoint.BEFORE_ASSEMBLY)
    if (source := replays.take_source(run)) is not None:
        items = source.items.select_related("group__environment").order_by("position")
        return _store(run, step, [item.group for item in items], encoding, replay_of=source)
    _drop_stale(run, step)
    chosen = preview(run, step, demand)
    if not isinstance(chosen, Chosen):
        return chosen
    # All of them, and before the groups: in the order in which a claim takes them.
    mixture = {
        row.pk: row for row in RunEnvironment.objects.select_for_update(no_key=True).filter(run=run).order_by("id")
    }
    moved = transition(
        ScoredGroup,
        chosen.group_ids,
        to=GroupState.BATCHED,
        actor=f"trainer:{run.epoch}",
        reason=f"step {step}",
    )
    if len(moved) != len(chosen.group_ids):
        raise StateConflict(f"Groups of step {step} were changed while its batch was formed; ask again.")
    run.mixture_clock = chosen.clock
    run.save(update_fields=["mixture_clock"])
    groups = list(ScoredGroup.objects.filter(pk__in=moved).select_related("environment").order_by("id"))
    for environment_id in {group.environment_id for group in groups}:
        mixture[environment_id].virtual_time = chosen.virtual_times[environment_id]
        mixture[environment_id].save(update_fields=["virtual_time"])
    return _store(run, step, groups, encoding, replay_of=None)


def check_epoch(run: Run, epoch: int) -> None:
    """Raise StaleEpoch unless ``epoch`` is the run's newest. Only sound while the run's row is locked."""
    if epoch != run.epoch:
        raise StaleEpoch(
            f"Epoch {epoch} was superseded by {run.epoch}: a newer trainer registered. End without writing."
        )


def _is_worth_forming(run: Run, step: int) -> bool:
    """Whether there is a batch, or something to drop. A trainer that waits asks many times a second."""
    return (
        replays.is_due(run)
        or (step > run.parsed.algorithm.max_off_policy_steps and _stale(run, step).exists())
        or isinstance(preview(run, step, demand_of(run)), Chosen)
    )


def _find(run: Run, epoch: int, step: int) -> Batch | None:
    """The batch of ``step`` if it was formed. Raises what `fetch` does when the trainer may not have it."""
    check_epoch(run, epoch)
    if run.kind not in {RunKind.RL, RunKind.EXTERNAL}:
        raise Conflict(f"Run {run.key} is supervised: it has no batches.")
    if run.state not in TRAINING or step >= run.max_steps:
        raise RunOver(f"Run {run.key} is {run.state}: there is no step {step} to train.")
    newest = Batch.objects.select_related("run").filter(run=run).order_by("-step").first()
    formed = 0 if newest is None else newest.step + 1
    if step > formed:
        raise StateConflict(f"Step {step} cannot be formed: {formed} is the next.")
    if newest is None or step == formed:
        return None
    return newest if newest.step == step else Batch.objects.select_related("run").get(run=run, step=step)


def _stale(run: Run, step: int) -> QuerySet[ScoredGroup]:
    oldest = step - run.parsed.algorithm.max_off_policy_steps
    return ScoredGroup.objects.filter(run=run, state=GroupState.READY, min_policy_version__lt=max(0, oldest))


def _drop_stale(run: Run, step: int) -> None:
    limit = run.parsed.algorithm.max_off_policy_steps
    transition(
        ScoredGroup,
        _stale(run, step).values_list("pk", flat=True),
        to=GroupState.STALE,
        actor="control plane",
        reason=f"lag over {limit} steps at step {step}",
    )


def _store(
    run: Run, step: int, groups: Sequence[ScoredGroup], encoding: BatchEncoding, replay_of: Batch | None
) -> Formed:
    rewards: dict[int, list[float | None]] = {group.pk: [] for group in groups}
    lengths: dict[int, list[int]] = {group.pk: [] for group in groups}
    is_cut: dict[int, list[bool]] = {group.pk: [] for group in groups}
    rows = Rollout.objects.filter(group_id__in=rewards).order_by("group_id", "index")
    for group_id, reward, length, reason in rows.values_list(
        "group_id", "reward", "trained_token_count", "stop_reason"
    ):
        rewards[group_id].append(reward)
        lengths[group_id].append(length)
        is_cut[group_id].append(reason == StopReason.LENGTH)
    algorithm = run.parsed.algorithm
    advantages = {pk: algorithm_advantages(algorithm, rewards[pk], lengths[pk], is_cut[pk]) for pk in rewards}
    trained = sum(
        length
        for pk, values in advantages.items()
        for length, advantage in zip(lengths[pk], values, strict=True)
        if advantage is not None
    )
    batch = Batch.objects.create(
        run=run,
        step=step,
        epoch=run.epoch,
        encoding=encoding,
        sha256="",
        size_bytes=0,
        token_count=trained,
        replay_of=replay_of,
    )
    numbers = replays.numbers(groups) if replay_of else {}
    BatchItem.objects.bulk_create(
        BatchItem(
            batch=batch,
            group=group,
            position=position,
            replay=numbers.get(group.pk, 0),
            advantages=advantages[group.pk],
        )
        for position, group in enumerate(groups)
    )
    body = encode(batch)
    batch.sha256 = hashlib.sha256(body).hexdigest()
    batch.size_bytes = len(body)
    batch.save(update_fields=["sha256", "size_bytes"])
    reason = f"replays step {replay_of.step} of run {replay_of.run.key}" if replay_of else ""
    record_creation([batch], run_id=run.pk, state=BatchState.FORMED, actor=f"trainer:{run.epoch}", reason=reason)
    metrics.record(run, step=step, values=_statistics(step, groups, rewards, is_replay=replay_of is not None))
    return Formed(batch, body)


def _statistics(
    step: int, groups: Sequence[ScoredGroup], rewards: dict[int, list[float | None]], *, is_replay: bool
) -> dict[str, float]:
    scored = {pk: [reward for reward in values if reward is not None] for pk, values in rewards.items()}
    every = [reward for values in scored.values() for reward in values]
    # Outside, a version may be in use before the step that trains on it is even formed: that is no lag.
    lags = [max(0, step - (group.min_policy_version or 0)) for group in groups]
    values = {
        "reward/mean": statistics.fmean(every),
        "reward/std": statistics.pstdev(every),
        "reward/zero_advantage_share": statistics.fmean(
            float(min(values) == max(values)) for values in scored.values()
        ),
        "batch/groups": len(groups),
        "batch/failed_rollouts": sum(len(values) for values in rewards.values()) - len(every),
    }
    if not is_replay:  # whose groups count their versions by the run they were made in
        values |= {"lag/max": max(lags), "lag/mean": statistics.fmean(lags)}
    for name in {group.environment.name for group in groups}:
        members = [reward for group in groups if group.environment.name == name for reward in scored[group.pk]]
        values[f"reward/{name}/mean"[:100]] = statistics.fmean(members)
    return {key: float(value) for key, value in values.items()}
