"""Hand out work, keep it and take it back: leases on playing groups.

    claim -> plays outside any transaction, renewing -> groups.settle
      ^                                   |
      '--- expired: taken over by the next claim under a new token; after MAX_LEASES given up

Lock order: environments of the run -> evaluations -> leases -> groups, each in id order -> problems, by environment and
index. Expiry is by the database clock, and the token in the WHERE clause, not the time, is what keeps a holder that
slept from settling.
"""

import uuid
from collections.abc import Iterable, Mapping
from datetime import timedelta

import msgspec
from django.contrib.postgres.functions import RandomUUID
from django.db import connection, models, transaction
from django.db.models.functions import Now

from environments.types import Claim, Claims, Split, Withheld
from rollouts import bell
from rollouts.models import Evaluation, Lease, Purpose, Run, RunEnvironment, RunKind, ScoredGroup
from rollouts.reasons import Reason, ReasonCode
from rollouts.services.groups import next_groups
from rollouts.services.transitions import DB_NOW, transition
from rollouts.sql import load
from rollouts.states import RUN_GENERATING, EvaluationState, GroupState, RunState

MAX_LEASES = 3
"""Leases on one group before it is given up: a problem that kills its worker must not kill every worker."""


class Sampling(msgspec.Struct, frozen=True):
    """How the episodes of a group are sampled."""

    group_size: int
    """Episodes per problem."""
    temperature: float
    max_tokens: int
    """In one turn, at most."""
    max_turns: int


def claim(
    run: Run,
    *,
    holder: str,
    limit: int,
    lease_s: float,
    rooms: Mapping[str, int] | None = None,
    evaluated_in_a_slot: int = 1,
) -> Claims:
    """Lease up to ``limit`` groups: first those whose holder died, then training up to capacity, and evaluation.

    Where both have groups to play, each has half of the holder's slots, evaluation the only one. If training stood
    still while it is played, the trainer would wait; if it waited for training to have enough, it might never be over.

    ``rooms``: how many new groups of each environment the holder would play; one that has no room passes its turn.
    ``evaluated_in_a_slot``: problems of an evaluation that count as one group in both.

    Locks the run's environments, so that claims of one run are serial and problems are handed out in order, and its
    open evaluations. So each statement between here and the commit is time for which everybody else's claim waits.
    """
    with transaction.atomic():
        environments = list(RunEnvironment.objects.select_for_update(no_key=True).filter(run=run).order_by("id"))
        now = next_groups.capacity(run)
        is_generating = now.state in RUN_GENERATING or now.state == RunState.PENDING
        if not run.parsed.is_played or not is_generating:
            return Claims(claims=[], reason=Withheld.OVER)
        if now.live_version < 0:
            return Claims(claims=[], reason=Withheld.NO_POLICY)
        open_evaluations = _lock_evaluations(run) if now.is_evaluated else []
        group_ids = _take_over(run, holder=holder, limit=limit, lease_s=lease_s, version=now.live_version)
        left = {row.pk: limit if rooms is None else rooms.get(row.name, 0) for row in environments}
        created = next_groups.begin(
            run,
            environments,
            open_evaluations,
            now,
            holder=holder,
            room=limit - len(group_ids),
            left=left,
            in_a_slot=evaluated_in_a_slot,
        )
        by_id = {row.pk: row for row in environments}
        for group in created:
            group.environment = by_id[group.environment_id]
        leases = [
            *_leases_of(group_ids),
            *_insert(run, created, holder=holder, lease_s=lease_s, version=now.live_version),
        ]
        if not leases:
            is_held_up = limit > 0 and run.kind == RunKind.RL and now.capacity <= 0
            return Claims(claims=[], reason=Withheld.CAPACITY if is_held_up else Withheld.NOTHING)
        return Claims(claims=[_claim(run, lease, now.live_version) for lease in leases])


def renew(tokens: Iterable[uuid.UUID | str], *, lease_s: float) -> set[uuid.UUID]:
    """Extend leases by ``lease_s`` from now; return the tokens that are still held. Drop the work of all others."""
    with transaction.atomic():
        held = _lock(Lease.objects.filter(token__in=list(tokens)))
        Lease.objects.filter(pk__in=[lease.pk for lease in held]).update(
            expires_at=Now() + models.Value(timedelta(seconds=lease_s))
        )
    return {lease.token for lease in held}


def release(tokens: Iterable[uuid.UUID | str]) -> None:
    """Give leases back at once, for a holder that ends in good order: the next claim takes them over.

    It does not count: three restarts of a worker say nothing against a problem. The tokens are good for nothing any
    more: the holder may have a renewal on its way.
    """
    with transaction.atomic():
        ids = [lease.pk for lease in _lock(Lease.objects.filter(token__in=list(tokens)))]
        Lease.objects.filter(pk__in=ids).update(
            token=RandomUUID(),
            claimed_at=Now() - models.Value(timedelta(seconds=1.0)),
            expires_at=Now() - models.Value(timedelta(seconds=0.5)),
        )
        ScoredGroup.objects.filter(pk__in=ids, lease_count__gt=0).update(lease_count=models.F("lease_count") - 1)


def end_all(leases: models.QuerySet[Lease]) -> None:
    """Delete leases: their holders can no longer settle. Waits for those that are settling now."""
    Lease.objects.filter(pk__in=[lease.pk for lease in _lock(leases)]).delete()


def _lock(leases: models.QuerySet[Lease]) -> list[Lease]:
    """Lock leases in one order, so that two callers cannot deadlock."""
    return list(leases.select_for_update(of=("self",)).order_by("pk"))


def quarantine_expired(run: Run) -> list[int]:
    """Give up groups that lost ``MAX_LEASES`` leases, with the evidence in the reason; return their ids."""
    with transaction.atomic():
        lost = list(
            Lease.objects.select_for_update(of=("self",), skip_locked=True)
            .filter(run=run, expires_at__lt=Now(), group__lease_count__gte=MAX_LEASES)
            .order_by("group_id")
        )
        moved: list[int] = []
        for lease in lost:
            moved += transition(
                ScoredGroup,
                [lease.group_id],
                to=GroupState.FAILED,
                actor="reconciler",
                reason=Reason(ReasonCode.LEASES_LOST, leases=MAX_LEASES, holder=lease.holder),
                settled_at=DB_NOW,
            )
        Lease.objects.filter(group_id__in=moved).delete()
    return moved


def _take_over(run: Run, *, holder: str, limit: int, lease_s: float, version: int) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(
            load("take_over_leases"),
            {
                "run_id": run.pk,
                "max_leases": MAX_LEASES,
                "limit": max(0, limit),
                "holder": holder,
                "lease_s": lease_s,
                "version": version,
                "actor": f"driver:{holder}",
                "reason_code": str(ReasonCode.LEASE_TAKEN_OVER),
            },
        )
        return [row[0] for row in cursor.fetchall()]


def _lock_evaluations(run: Run) -> list[Evaluation]:
    """Open evaluations with problems left to hand out, locked before any lease is."""
    open_evaluations = Evaluation.objects.filter(
        run=run, state=EvaluationState.PLAYING, cursor__lt=models.F("problems")
    )
    return list(open_evaluations.select_for_update(no_key=True).order_by("id"))


def _leases_of(group_ids: list[int]) -> list[Lease]:
    if not group_ids:
        return []
    return list(Lease.objects.filter(group_id__in=group_ids).select_related("group__environment").order_by("group_id"))


def _insert(run: Run, groups: list[ScoredGroup], *, holder: str, lease_s: float, version: int) -> list[Lease]:
    """Store groups that begin, and the leases on them, in one statement; returns the leases in the same order."""
    if not groups:
        return []
    for group in groups:
        group.key = str(group.key)
    with connection.cursor() as cursor:
        cursor.execute(
            load("insert_claimed"),
            {
                "run_id": run.pk,
                "holder": holder,
                "lease_s": lease_s,
                "version": version,
                "actor": f"driver:{holder}",
                "keys": [group.key for group in groups],
                "environment_ids": [group.environment_id for group in groups],
                "purposes": [str(group.purpose) for group in groups],
                "evaluation_ids": [group.evaluation_id for group in groups],
                "indexes": [group.problem_index for group in groups],
            },
        )
        rows = cursor.fetchall()
    bell.ring_after_commit(run.pk, is_flow=True)
    for group, (group_id, _) in zip(groups, rows, strict=True):
        group.pk = group_id
    return [Lease(group=group, run=run, token=token) for group, (_, token) in zip(groups, rows, strict=True)]


def own_seats_of(run: Run, group: ScoredGroup) -> list[str]:
    """The seats of which each episode of a group leaves a rollout; one without a name where there are no seats."""
    return run.environment_ref(group.environment.name).own_seats


def sampling_of(run: Run, group: ScoredGroup) -> Sampling:
    """How the episodes of a group are sampled, and how many there are."""
    config = run.parsed
    own = config.sampling_of(group.environment.name)
    if group.purpose == Purpose.TRAIN:
        return Sampling(own.group_size, own.temperature, own.max_tokens, own.max_turns)
    plan = config.evaluation
    assert plan is not None, "evaluation groups exist only in runs that evaluate"
    return Sampling(plan.rollouts_per_problem, plan.temperature, own.max_tokens, own.max_turns)


def split_of(run: Run, group: ScoredGroup) -> Split:
    """Which problems its index counts."""
    plan = run.parsed.evaluation
    return Split.TRAIN if group.purpose == Purpose.TRAIN or plan is None else Split(plan.split)


def _claim(run: Run, lease: Lease, live_version: int) -> Claim:
    group = lease.group
    sampling = sampling_of(run, group)
    assert group.problem_index is not None, "leased groups have a problem"
    return Claim(
        group=group.key,
        token=str(lease.token),
        run=run.key,
        environment=group.environment.name,
        args=group.environment.args,
        split=split_of(run, group),
        problem_index=group.problem_index,
        group_size=sampling.group_size,
        seats=run.environment_ref(group.environment.name).seating,
        temperature=sampling.temperature,
        max_tokens=sampling.max_tokens,
        max_turns=sampling.max_turns,
        policy_version=live_version,
    )
