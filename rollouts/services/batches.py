"""Form the batch of a step, once, and deliver it as often as it is asked for.

    ready groups, oldest first -> stale ones dropped -> batch_size rollouts -> advantages -> hash -> stored -> sent

The run's row is locked while a batch is formed, so formation is serial per run; (run, step) and (group, replay) are
unique in the database, so neither a second batch of a step nor a second step of a group can be committed.
Lock order: run -> groups.
"""

import hashlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from django.db import transaction
from django.db.models import Count, F, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from rollouts.errors import Conflict, RunOver, StaleEpoch, StateConflict
from rollouts.models import Batch, BatchItem, Rollout, Run, RunKind, ScoredGroup
from rollouts.services import metrics
from rollouts.services.transitions import DB_NOW, record_creation, transition
from rollouts.states import BatchState, GroupState, RunState
from trainers.advantages import group_advantages
from trainers.wire import TrainingBatch, TrainingRollout

TRAINING = frozenset({RunState.STARTING, RunState.RUNNING})


@dataclass(frozen=True)
class Delivery:
    """A batch as it goes over the wire."""

    body: bytes
    """MessagePack of a TrainingBatch."""
    sha256: str


def fetch(run: Run, *, epoch: int, step: int) -> Delivery | None:
    """The batch of ``step``, formed now if enough groups are ready; None if not yet.

    The same step is the same bytes on every call, also for a later epoch that trains it again after a resume. Raises
    StaleEpoch for an older trainer, RunOver when there is nothing more to train, StateConflict when ``step`` is not the
    next one that can be formed. Locks the run's row while it forms; asking in vain locks and writes nothing.
    """
    run = Run.objects.get(pk=run.pk)
    _check_trains(run, epoch, step)
    batch = Batch.objects.filter(run=run, step=step).first()
    if batch is None:
        if not _is_worth_forming(run, step):
            return None
        with transaction.atomic():
            run = Run.objects.select_for_update(no_key=True).get(pk=run.pk)
            _check_trains(run, epoch, step)
            batch = Batch.objects.filter(run=run, step=step).first() or _form(run, step)
        if batch is None:
            return None
    body = encode(batch)
    if hashlib.sha256(body).hexdigest() != batch.sha256:
        raise AssertionError(f"batch {batch.pk} no longer encodes to its hash {batch.sha256}: its rows were changed")
    transition(Batch, [batch.pk], to=BatchState.DELIVERED, actor=f"trainer:{epoch}", delivered_at=DB_NOW)
    Batch.objects.filter(pk=batch.pk).update(deliveries=F("deliveries") + 1)
    return Delivery(body=body, sha256=batch.sha256)


def _check_trains(run: Run, epoch: int, step: int) -> None:
    check_epoch(run, epoch)
    if run.kind != RunKind.RL:
        raise Conflict(f"Run {run.key} is supervised: it has no batches.")
    if run.state not in TRAINING or step >= run.max_steps:
        raise RunOver(f"Run {run.key} is {run.state}: there is no step {step} to train.")
    formed = Batch.objects.filter(run=run).count()
    if step > formed:
        raise StateConflict(f"Step {step} cannot be formed: {formed} is the next.")


def _is_worth_forming(run: Run, step: int) -> bool:
    """Whether there is enough for a batch, or something to drop. A trainer that waits asks many times a second."""
    ready = _ready(run).aggregate(
        rollouts=Coalesce(Sum("rollout_count"), 0), stale=Count("pk", filter=_is_stale(run, step))
    )
    return bool(ready["stale"]) or ready["rollouts"] >= run.parsed.batch.batch_size


def check_epoch(run: Run, epoch: int) -> None:
    """Raise StaleEpoch unless ``epoch`` is the run's newest. Only sound while the run's row is locked."""
    if epoch != run.epoch:
        raise StaleEpoch(
            f"Epoch {epoch} was superseded by {run.epoch}: a newer trainer registered. End without writing."
        )


def encode(batch: Batch) -> bytes:
    """The MessagePack body of a batch, rebuilt from its rows: the same bytes every time."""
    items = list(batch.items.select_related("group__environment").order_by("position"))
    advantages = {item.group_id: item.advantages for item in items}
    by_group: dict[int, list[Rollout]] = {item.group_id: [] for item in items}
    rollouts = Rollout.objects.filter(group_id__in=by_group).select_related("tokens").order_by("group_id", "index")
    for rollout in rollouts:
        by_group[rollout.group_id].append(rollout)
    run = batch.run
    return msgspec.msgpack.encode(
        TrainingBatch(
            run=run.key,
            step=batch.step,
            temperature=run.parsed.sampling.temperature,
            rollouts=[
                _training_rollout(item.group, rollout, advantage)
                for item in items
                for rollout, advantage in zip(by_group[item.group_id], advantages[item.group_id], strict=True)
                if advantage is not None and rollout.trained_token_count > 0
            ],
        )
    )


def _training_rollout(group: ScoredGroup, rollout: Rollout, advantage: float) -> TrainingRollout:
    versions = [v for v in (rollout.dispatch_policy_version, rollout.first_policy_version) if v is not None]
    oldest = min(versions, default=group.min_policy_version or 0)
    assert rollout.reward is not None, "only scored rollouts have an advantage"
    return TrainingRollout(
        group=group.key,
        index=rollout.index,
        environment=group.environment.name,
        problem_key=group.problem_key,
        token_ids=bytes(rollout.tokens.token_ids),
        loss_mask=bytes(rollout.tokens.loss_mask),
        inference_logprobs=bytes(rollout.tokens.inference_logprobs),
        advantage=advantage,
        reward=rollout.reward,
        min_policy_version=oldest,
        max_policy_version=max(oldest, rollout.last_policy_version or 0),
    )


def _form(run: Run, step: int) -> Batch | None:
    _drop_stale(run, step)
    groups = _take_ready(run)
    if not groups:
        return None
    config = run.parsed.algorithm
    moved = transition(
        ScoredGroup,
        [group.pk for group in groups],
        to=GroupState.BATCHED,
        actor=f"trainer:{run.epoch}",
        reason=f"step {step}",
    )
    if len(moved) != len(groups):
        raise StateConflict(f"Groups of step {step} were changed while its batch was formed; ask again.")
    rewards: dict[int, list[float | None]] = {group.pk: [] for group in groups}
    for group_id, reward in (
        Rollout.objects.filter(group_id__in=rewards).order_by("group_id", "index").values_list("group_id", "reward")
    ):
        rewards[group_id].append(reward)
    batch = Batch.objects.create(run=run, step=step, epoch=run.epoch, sha256="", size_bytes=0, token_count=0)
    BatchItem.objects.bulk_create(
        BatchItem(
            batch=batch,
            group=group,
            position=position,
            advantages=group_advantages(rewards[group.pk], config.advantage, config.std_epsilon),
        )
        for position, group in enumerate(groups)
    )
    body = encode(batch)
    batch.sha256 = hashlib.sha256(body).hexdigest()
    batch.size_bytes = len(body)
    batch.token_count = sum(
        Rollout.objects.filter(group_id__in=rewards, reward__isnull=False).values_list("trained_token_count", flat=True)
    )
    batch.save(update_fields=["sha256", "size_bytes", "token_count"])
    record_creation([batch], run_id=run.pk, state=BatchState.FORMED, actor=f"trainer:{run.epoch}")
    metrics.record(run, step=step, values=_statistics(step, groups, rewards))
    return batch


def _ready(run: Run) -> QuerySet[ScoredGroup]:
    return ScoredGroup.objects.filter(run=run, state=GroupState.READY)


def _is_stale(run: Run, step: int) -> Q:
    return Q(min_policy_version__lt=step - run.parsed.algorithm.max_off_policy_steps)


def _drop_stale(run: Run, step: int) -> None:
    limit = run.parsed.algorithm.max_off_policy_steps
    transition(
        ScoredGroup,
        _ready(run).filter(_is_stale(run, step)).values_list("pk", flat=True),
        to=GroupState.STALE,
        actor="control plane",
        reason=f"lag over {limit} steps at step {step}",
    )


def _take_ready(run: Run) -> list[ScoredGroup]:
    """The oldest ready groups that together hold at least ``batch_size`` rollouts, locked; none if they hold fewer."""
    wanted = run.parsed.batch.batch_size
    ready = _ready(run).select_for_update(of=("self",), no_key=True).select_related("environment").order_by("id")
    taken: list[ScoredGroup] = []
    have = 0
    for group in ready[:wanted]:
        taken.append(group)
        have += group.rollout_count
        if have >= wanted:
            return taken
    return []


def _statistics(step: int, groups: Sequence[ScoredGroup], rewards: dict[int, list[float | None]]) -> dict[str, float]:
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
        "lag/max": max(lags),
        "lag/mean": statistics.fmean(lags),
        "batch/groups": len(groups),
        "batch/failed_rollouts": sum(len(values) for values in rewards.values()) - len(every),
    }
    for name in {group.environment.name for group in groups}:
        members = [reward for group in groups if group.environment.name == name for reward in scored[group.pk]]
        values[f"reward/{name}/mean"[:100]] = statistics.fmean(members)
    return {key: float(value) for key, value in values.items()}
