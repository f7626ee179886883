"""Store scored groups: those our drivers played (settle) and those of external environments (submit).

A return means the rows are committed and survive kill -9. Lock order: lease -> group.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import msgspec
from django.db import connection, transaction
from django.db.models.functions import Now

from environments.types import Rollout as RolloutIn
from environments.types import ScoredGroup as ScoredGroupIn
from environments.types import StopReason
from rollouts import packing
from rollouts.errors import LeaseLost, RunOver
from rollouts.models import (
    Lease,
    Purpose,
    Rollout,
    RolloutTokens,
    Run,
    RunEnvironment,
    ScoredGroup,
)
from rollouts.services.transitions import DB_NOW, record_creation, transition
from rollouts.states import RUN_GENERATING, GroupState
from rollouts.validation import check_groups, check_rollouts, displayable


def settle(*, token: str, problem_key: str, rollouts: list[RolloutIn], worker: str) -> GroupState:
    """Store what a leased group's episodes left and end its lease; return the state the group went to.

    Raises LeaseLost when the token was superseded or the group was given up, Invalid when the rollouts do not hold
    together; nothing is stored then. Locks the lease, then the group.
    """
    check_rollouts(rollouts)
    with transaction.atomic():
        lease = Lease.objects.select_for_update(of=("self",)).select_related("group", "run").filter(token=token).first()
        if lease is None:
            raise LeaseLost
        group, run = lease.group, lease.run
        _insert_rollouts([(group, rollouts)], worker=worker)
        state, reason = _verdict(run, group.purpose, rollouts)
        moved = transition(
            ScoredGroup,
            [group.pk],
            to=state,
            actor=f"driver:{lease.holder}",
            reason=reason,
            settled_at=DB_NOW,
            problem_key=problem_key[:200],
            **_summary(rollouts, fallback_version=run.live_version),
        )
        if not moved:
            raise LeaseLost
        lease.delete()
    return state


def submit(run: Run, groups: list[ScoredGroupIn], *, actor: str) -> list[str]:
    """Store groups that an external environment scored, all or none; return their keys in order.

    A key the run already has is not stored again, so a retry is harmless. Raises Invalid with every field at fault.
    """
    check_groups(groups)
    with transaction.atomic():
        run = Run.objects.get(pk=run.pk)
        if run.state not in RUN_GENERATING:
            raise RunOver(f"Run {run.key} is {run.state} and takes no more groups.")
        environments = {
            name: RunEnvironment.objects.get_or_create(run=run, name=name)[0]
            for name in {group.environment for group in groups}
        }
        pairs = [(_row(run, environments[group.environment], group), group) for group in groups]
        keys = [row.key for row, _ in pairs]
        known = _lock_keys(run, keys)
        new = list({row.key: (row, group) for row, group in pairs if row.key not in known}.values())
        ScoredGroup.objects.bulk_create(row for row, _ in new)
        _insert_rollouts([(row, group.rollouts) for row, group in new], worker=actor)
        for state in {row.state for row, _ in new}:
            record_creation(
                [row for row, _ in new if row.state == state],
                run_id=run.pk,
                state=state,
                actor=actor,
            )
    return keys


def _lock_keys(run: Run, keys: list[str]) -> set[str]:
    """Those keys that the run already has. Two submits of one key wait for each other until commit."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s || key, 0))"
            " FROM (SELECT DISTINCT unnest(%s::text[]) AS key ORDER BY 1) AS ordered",
            [f"group:{run.pk}:", keys],
        )
    return set(ScoredGroup.objects.filter(run=run, key__in=keys).values_list("key", flat=True))


def _row(run: Run, environment: RunEnvironment, group: ScoredGroupIn) -> ScoredGroup:
    state, reason = _verdict(run, Purpose.TRAIN, group.rollouts)
    row = ScoredGroup(
        run=run,
        environment=environment,
        problem_key=group.problem_key,
        state=state,
        state_reason=reason,
        settled_at=Now(),
        **_summary(group.rollouts, fallback_version=run.live_version),
    )
    if group.key is not None:
        row.key = group.key
    row.key = str(row.key)
    return row


def _verdict(run: Run, purpose: str, rollouts: Sequence[RolloutIn]) -> tuple[GroupState, str]:
    """Where a settled group goes, and why it is dropped if it is."""
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    if not rewards:
        error = next(rollout.error for rollout in rollouts if rollout.stop_reason is StopReason.ERROR)
        why = f"{error.kind}: {error.type}: {error.message}" if error else "no reward"
        return GroupState.FAILED, displayable(f"every rollout failed, the first with {why}")[:500]
    if purpose == Purpose.EVAL:
        return GroupState.EVALUATED, ""
    if not any(any(rollout.loss_mask) for rollout in rollouts if rollout.reward is not None):
        return (
            GroupState.FAILED,
            "no token was sampled by the policy: every loss mask is 0",
        )
    if run.parsed.algorithm.filter_zero_advantage and min(rewards) == max(rewards):
        return GroupState.FILTERED, "zero advantage: all rewards are equal"
    return GroupState.READY, ""


def _summary(rollouts: Sequence[RolloutIn], *, fallback_version: int) -> dict[str, Any]:
    """The columns that lists and batch formation read instead of the rollouts."""
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    fallback = max(fallback_version, 0)
    oldest = [_first(r.dispatch_policy_version, r.first_policy_version, fallback) for r in rollouts]
    newest = [
        _first(
            r.last_policy_version,
            r.first_policy_version,
            r.dispatch_policy_version,
            fallback,
        )
        for r in rollouts
    ]
    return {
        "rollout_count": len(rollouts),
        "token_count": sum(len(rollout.token_ids) for rollout in rollouts),
        "reward_mean": math.fsum(rewards) / len(rewards) if rewards else None,
        "reward_std": statistics.pstdev(rewards) if rewards else None,
        "min_policy_version": min(oldest),
        "max_policy_version": max(*newest, *oldest),
    }


def _first(*versions: int | None) -> int:
    return next(version for version in versions if version is not None)


def _insert_rollouts(groups: Sequence[tuple[ScoredGroup, Sequence[RolloutIn]]], *, worker: str) -> None:
    pairs = [
        (_rollout_row(group, index, rollout, worker), rollout)
        for group, rollouts in groups
        for index, rollout in enumerate(rollouts)
    ]
    Rollout.objects.bulk_create([row for row, _ in pairs])
    RolloutTokens.objects.bulk_create(
        RolloutTokens(
            rollout=row,
            token_ids=packing.pack_ids(rollout.token_ids),
            loss_mask=packing.pack_mask(rollout.loss_mask),
            inference_logprobs=packing.pack_logprobs(rollout.inference_logprobs),
        )
        for row, rollout in pairs
    )


def _rollout_row(group: ScoredGroup, index: int, rollout: RolloutIn, worker: str) -> Rollout:
    return Rollout(
        group=group,
        index=index,
        reward=rollout.reward,
        metrics=rollout.metrics,
        messages=[
            {**msgspec.to_builtins(message), "content": displayable(message.content)} for message in rollout.messages
        ],
        stop_reason=rollout.stop_reason,
        error_kind=rollout.error.kind if rollout.error else "",
        error={name: displayable(str(text)) for name, text in msgspec.structs.asdict(rollout.error).items()}
        if rollout.error
        else None,
        token_count=len(rollout.token_ids),
        trained_token_count=sum(rollout.loss_mask),
        dispatch_policy_version=rollout.dispatch_policy_version,
        first_policy_version=rollout.first_policy_version,
        last_policy_version=rollout.last_policy_version,
        replica=rollout.replica,
        worker=worker[:100],
        generation_s=rollout.generation_s,
    )
