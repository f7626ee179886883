"""Store scored groups: those our drivers played (settle) and those of external environments (submit).

A return means the rows are committed and survive kill -9. Lock order: lease -> group when settling; keys -> run when
submitting.
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
from rollouts.errors import Conflict, Invalid, LeaseLost, RunOver, StateConflict
from rollouts.models import (
    Lease,
    Purpose,
    Rollout,
    RolloutTokens,
    Run,
    RunEnvironment,
    RunKind,
    ScoredGroup,
)
from rollouts.services import leases
from rollouts.services.transitions import DB_NOW, record_creation, transition
from rollouts.states import GroupState, RunState
from rollouts.validation import check_groups, check_rollouts, displayable

TAKES_GROUPS = frozenset({RunState.STARTING, RunState.RUNNING})
MAX_ENVIRONMENTS = 100
KEY_LOCKS = 64
"""A power of two."""


def settle(*, token: str, problem_key: str, rollouts: list[RolloutIn], worker: str) -> GroupState:
    """Store what a leased group's episodes left and end its lease; return the state the group went to.

    Raises LeaseLost when the token was superseded or the group was given up, Invalid when the rollouts do not hold
    together or are not as many as were claimed; nothing is stored then. Locks the lease, then the group.
    """
    check_rollouts(rollouts)
    with transaction.atomic():
        lease = Lease.objects.select_for_update(of=("self",)).select_related("group", "run").filter(token=token).first()
        if lease is None:
            raise LeaseLost
        group, run = lease.group, lease.run
        wanted = leases.sampling_of(run, group).group_size
        if len(rollouts) != wanted:
            fields = {"rollouts": f"the claim asks for {wanted}, these are {len(rollouts)}; send failed episodes too"}
            raise Invalid("Nothing was stored: a group is settled whole.", fields=fields)
        _insert_rollouts([(group, rollouts)], worker=worker)
        state, reason = _verdict(run, group.purpose, rollouts)
        moved = transition(
            ScoredGroup,
            [group.pk],
            to=state,
            actor=f"driver:{lease.holder}",
            reason=reason,
            settled_at=DB_NOW,
            problem_key=displayable(problem_key)[:200],
            **_summary(rollouts, fallback_version=run.live_version),
        )
        if not moved:
            raise LeaseLost
        lease.delete()
    return state


def submit(run: Run, groups: list[ScoredGroupIn], *, actor: str) -> list[str]:
    """Store groups that an external environment scored, all or none; return their keys in order.

    A key the run already has is not stored again, so a retry is harmless. Raises Invalid with every field at fault,
    Conflict when a key was used for another group, RunOver when nothing more will be trained. Locks the run (shared)
    just before it commits.
    """
    check_groups(groups)
    if run.kind != RunKind.RL:
        raise Conflict(f"Run {run.key} is supervised: it trains on its data file and takes no groups.")
    with transaction.atomic():
        run = Run.objects.get(pk=run.pk)
        _check_takes_groups(run, run.state)
        newest = run.next_step + 1
        environments = _environments(run, {group.environment for group in groups})
        pairs = [(_row(run, environments[group.environment], group, newest_version=newest), group) for group in groups]
        known = _lock_keys(run, [group.key for group in groups if group.key is not None])
        new = [(row, group) for row, group in pairs if row.key not in known]
        for row, _ in pairs:
            if row.key in known and known[row.key] != _identity(row):
                raise Conflict(f"The key {row.key} was used for another group. Give every group a key of its own.")
        ScoredGroup.objects.bulk_create(row for row, _ in new)
        _insert_rollouts([(row, group.rollouts) for row, group in new], worker=actor)
        for state in {row.state for row, _ in new}:
            rows = [row for row, _ in new if row.state == state]
            record_creation(rows, run_id=run.pk, state=state, actor=actor)
        _check_takes_groups(run, _lock_state(run))
    return [row.key for row, _ in pairs]


def _lock_state(run: Run) -> str:
    """The run's state, which stays so until commit: whoever ends the run waits, and then sees the rows just stored.

    Last in the transaction, because every fetch of a batch waits for this lock.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT state FROM rollouts_run WHERE id = %s FOR SHARE", [run.pk])
        row = cursor.fetchone()
    assert row is not None, "runs are never deleted"
    return str(row[0])


def _check_takes_groups(run: Run, state: str) -> None:
    if state == RunState.PENDING:
        raise StateConflict(f"Run {run.key} has not been started yet. Submit again in a few seconds.")
    if state not in TAKES_GROUPS:
        raise RunOver(f"Run {run.key} is {state} and takes no more groups.")


def _environments(run: Run, names: set[str]) -> dict[str, RunEnvironment]:
    """The run's environments of these names. In name order: two submits that insert the same must not deadlock."""
    found = {row.name: row for row in RunEnvironment.objects.filter(run=run)}
    missing = sorted(names - found.keys())
    if len(found) + len(missing) > MAX_ENVIRONMENTS:
        raise Invalid(
            "Nothing was stored: the run has too many environments.",
            fields={"environment": f"a run has at most {MAX_ENVIRONMENTS}; tell problems apart by problem_key"},
        )
    for name in missing:
        found[name], _ = RunEnvironment.objects.get_or_create(run=run, name=name)
    return found


def _lock_keys(run: Run, keys: list[str]) -> dict[str, tuple[object, ...]]:
    """Those keys that the run already has, with their groups' identities.

    Two submits of one key wait for each other until commit. The locks are advisory and few (KEY_LOCKS at most), since
    Postgres has room for only some thousands at a time.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_advisory_xact_lock(%s, number) FROM"
            " (SELECT DISTINCT hashtext(key) & %s AS number FROM unnest(%s::text[]) AS key ORDER BY 1) AS numbers",
            [run.pk % 2**31, KEY_LOCKS - 1, keys],
        )
    known = ScoredGroup.objects.filter(run=run, key__in=keys)
    return {row.key: _identity(row) for row in known}


def _identity(row: ScoredGroup) -> tuple[object, ...]:
    return row.environment_id, row.problem_key, row.rollout_count, row.token_count


def _row(run: Run, environment: RunEnvironment, group: ScoredGroupIn, *, newest_version: int) -> ScoredGroup:
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
    if row.max_policy_version is not None and row.max_policy_version > newest_version:
        raise Invalid(
            "Nothing was stored: a rollout names a policy version that does not exist yet.",
            fields={"last_policy_version": f"must be at most {newest_version}"},
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
        messages=[_displayable_values(message) for message in rollout.messages],
        stop_reason=rollout.stop_reason,
        error_kind=rollout.error.kind if rollout.error else "",
        error=_displayable_values(rollout.error) if rollout.error else None,
        token_count=len(rollout.token_ids),
        trained_token_count=sum(rollout.loss_mask),
        dispatch_policy_version=rollout.dispatch_policy_version,
        first_policy_version=rollout.first_policy_version,
        last_policy_version=rollout.last_policy_version,
        replica=rollout.replica,
        worker=worker[:100],
        generation_s=rollout.generation_s,
    )


def _displayable_values(struct: msgspec.Struct) -> dict[str, Any]:
    """A struct of strings as JSON that Postgres can hold."""
    values = msgspec.to_builtins(struct)
    return {name: displayable(text) for name, text in values.items() if text is not None}
