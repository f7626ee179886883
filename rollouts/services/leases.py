"""Hand out work, keep it and take it back: leases on playing groups.

    claim -> plays outside any transaction, renewing -> groups.settle
      ^                                   |
      '--- expired: taken over by the next claim under a new token; after MAX_ATTEMPTS given up

Lock order: environments of the run (id order) -> leases -> groups. Expiry is by the database clock, and the token in
the WHERE clause, not the time, is what keeps a holder that slept from settling.
"""

import uuid
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import msgspec
from django.db import connection, models, transaction
from django.db.models.functions import Now

from environments.types import Split
from rollouts.models import Evaluation, Lease, Purpose, Run, RunEnvironment, ScoredGroup
from rollouts.services.transitions import DB_NOW, record_creation, transition
from rollouts.sql import load
from rollouts.states import RUN_GENERATING, EvaluationState, GroupState

MAX_ATTEMPTS = 3
"""Leases on one group before it is given up: a problem that kills its worker must not kill every worker."""


class Claim(msgspec.Struct, kw_only=True):
    """One group to play, and the right to settle it."""

    group: str
    token: str
    run: str
    environment: str
    args: dict[str, Any]
    split: Split
    problem_index: int
    """Position in the environment's problems; the driver wraps it by their count."""
    group_size: int
    temperature: float
    max_tokens: int
    max_turns: int
    policy_version: int
    """Live when it was claimed. An evaluation stays on it: publishing waits."""


class Claims(msgspec.Struct, kw_only=True):
    """What a claim gave, and when it gave nothing, why."""

    claims: list[Claim]
    reason: str = ""
    """``capacity``: generation is as far ahead of the trainer as it may be. ``no_policy``: nothing is live yet.
    ``over``: the run takes no more work."""


class Capacity(msgspec.Struct, frozen=True):
    state: str
    live_version: int
    capacity: int
    """Training groups that may still be claimed; negative when the limit was lowered."""


def capacity(run: Run) -> Capacity:
    """How far generation may still run ahead: at most ``max_async_level`` batches beyond the live version."""
    config = run.parsed
    with connection.cursor() as cursor:
        cursor.execute(
            load("capacity"),
            {
                "run_id": run.pk,
                "max_async_level": config.algorithm.max_async_level,
                "groups_per_batch": groups_per_batch(run),
            },
        )
        row = cursor.fetchone()
    assert row is not None, "runs are never deleted"
    return Capacity(*row)


def groups_per_batch(run: Run) -> int:
    """Groups of the configured size that make one batch."""
    return run.parsed.batch.batch_size // run.parsed.sampling.group_size


def claim(run: Run, *, holder: str, limit: int, lease_s: float) -> Claims:
    """Lease up to ``limit`` groups: first those whose holder died, then evaluation, then training up to capacity.

    Locks the run's environments, so that claims of one run are serial and problems are handed out in order.
    """
    with transaction.atomic():
        environments = list(RunEnvironment.objects.select_for_update(no_key=True).filter(run=run).order_by("id"))
        now = capacity(run)
        if now.state not in RUN_GENERATING:
            return Claims(claims=[], reason="over")
        if now.live_version < 0:
            return Claims(claims=[], reason="no_policy")
        group_ids = _take_over(run, holder=holder, limit=limit, lease_s=lease_s)
        created = _evaluation_groups(run, limit - len(group_ids))
        room = min(limit - len(group_ids) - len(created), now.capacity)
        created += _training_groups(run, environments, room)
        _insert(run, created, holder=holder, lease_s=lease_s)
        group_ids += [group.pk for group in created]
        if not group_ids:
            return Claims(claims=[], reason="capacity" if limit > 0 else "")
        leases = Lease.objects.filter(group_id__in=group_ids).select_related("group__environment").order_by("group_id")
        return Claims(claims=[_claim(run, lease, now.live_version) for lease in leases])


def renew(tokens: Iterable[uuid.UUID | str], *, lease_s: float) -> set[uuid.UUID]:
    """Extend leases by ``lease_s`` from now; return the tokens that are still held. Drop the work of all others."""
    expires_at = Now() + models.Value(timedelta(seconds=lease_s))
    held = Lease.objects.filter(token__in=list(tokens))
    held.update(expires_at=expires_at)
    return set(held.values_list("token", flat=True))


def release(tokens: Iterable[uuid.UUID | str]) -> None:
    """Give leases back at once, for a holder that ends in good order: the next claim takes them over."""
    Lease.objects.filter(token__in=list(tokens)).update(
        claimed_at=Now() - models.Value(timedelta(seconds=1.0)),
        expires_at=Now() - models.Value(timedelta(seconds=0.5)),
    )


def quarantine_expired(run: Run) -> list[int]:
    """Give up groups that lost ``MAX_ATTEMPTS`` leases, with the evidence in the reason; return their ids."""
    with transaction.atomic():
        lost = list(
            Lease.objects.select_for_update(of=("self",), skip_locked=True)
            .filter(run=run, expires_at__lt=Now(), group__attempts__gte=MAX_ATTEMPTS)
            .order_by("group_id")
        )
        moved: list[int] = []
        for lease in lost:
            moved += transition(
                ScoredGroup,
                [lease.group_id],
                to=GroupState.FAILED,
                actor="reconciler",
                reason=f"quarantined: {MAX_ATTEMPTS} leases were lost while it was played, the last by {lease.holder}",
                settled_at=DB_NOW,
            )
        Lease.objects.filter(group_id__in=moved).delete()
    return moved


def _take_over(run: Run, *, holder: str, limit: int, lease_s: float) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(
            load("take_over_leases"),
            {
                "run_id": run.pk,
                "max_attempts": MAX_ATTEMPTS,
                "limit": limit,
                "holder": holder,
                "lease_s": lease_s,
                "actor": f"driver:{holder}",
            },
        )
        return [row[0] for row in cursor.fetchall()]


def _evaluation_groups(run: Run, room: int) -> list[ScoredGroup]:
    groups: list[ScoredGroup] = []
    open_evaluations = Evaluation.objects.select_for_update().filter(
        run=run, state=EvaluationState.PLAYING, cursor__lt=models.F("problems")
    )
    for evaluation in open_evaluations.order_by("id"):
        count = min(room - len(groups), evaluation.problems - evaluation.cursor)
        if count <= 0:
            break
        groups += [
            ScoredGroup(
                run=run,
                environment_id=evaluation.environment_id,
                purpose=Purpose.EVAL,
                evaluation=evaluation,
                problem_index=evaluation.cursor + offset,
                state=GroupState.PLAYING,
            )
            for offset in range(count)
        ]
        evaluation.cursor += count
        evaluation.save(update_fields=["cursor"])
    return groups


def _training_groups(run: Run, environments: list[RunEnvironment], room: int) -> list[ScoredGroup]:
    """Problems in order of each environment, environments in proportion to their weights."""
    groups = []
    for _ in range(room):
        environment = min(environments, key=lambda env: ((env.cursor + 1) / env.weight, env.pk))
        groups.append(
            ScoredGroup(
                run=run,
                environment=environment,
                problem_index=environment.cursor,
                state=GroupState.PLAYING,
            )
        )
        environment.cursor += 1
    if groups:
        RunEnvironment.objects.bulk_update(environments, ["cursor"])
    return groups


def _insert(run: Run, groups: list[ScoredGroup], *, holder: str, lease_s: float) -> None:
    if not groups:
        return
    ScoredGroup.objects.bulk_create(groups)
    expires_at = Now() + models.Value(timedelta(seconds=lease_s))
    Lease.objects.bulk_create(
        Lease(group=group, run=run, holder=holder, claimed_at=Now(), expires_at=expires_at) for group in groups
    )
    record_creation(groups, run_id=run.pk, state=GroupState.PLAYING, actor=f"driver:{holder}")


def _claim(run: Run, lease: Lease, live_version: int) -> Claim:
    config = run.parsed
    group = lease.group
    is_eval = group.purpose == Purpose.EVAL
    evaluation = config.evaluation
    if is_eval:
        assert evaluation is not None, "evaluation groups exist only in runs that evaluate"
        group_size, temperature = (
            evaluation.rollouts_per_problem,
            evaluation.temperature,
        )
    else:
        group_size, temperature = (
            config.sampling.group_size,
            config.sampling.temperature,
        )
    assert group.problem_index is not None, "leased groups have a problem"
    return Claim(
        group=group.key,
        token=str(lease.token),
        run=run.key,
        environment=group.environment.name,
        args=group.environment.args,
        split=Split.EVAL if is_eval else Split.TRAIN,
        problem_index=group.problem_index,
        group_size=group_size,
        temperature=temperature,
        max_tokens=config.sampling.max_tokens,
        max_turns=config.sampling.max_turns,
        policy_version=live_version,
    )
