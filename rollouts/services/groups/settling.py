"""Store what the episodes of leased groups left, and end the leases; those who settle at a time share a transaction.

    thread A: pack, check ─┐
    thread B: pack, check ─┼─ lock the leases ─▶ insert rollouts ─▶ move the groups ─▶ rate their problems ─▶ commit
    thread C: pack, check ─┘

A return means the rows are committed and survive kill -9. Lock order: leases in id order -> groups, which nobody else
moves whose leases are held -> problems by environment and index.
"""

import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from django.db import connection, transaction

from environments.types import PlayedRollout
from rollouts.errors import Invalid, LeaseLost
from rollouts.formats.arrays import PackedGroup, pack_rollouts
from rollouts.formats.checks import NO_TOKENS, check_rollouts, lacks_tokens
from rollouts.models import Lease, Run, ScoredGroup
from rollouts.reasons import Reason
from rollouts.services.groups import leases, problems
from rollouts.services.groups.combining import Combiner, database_is_away
from rollouts.services.groups.insertion import Incoming, insert_rollouts
from rollouts.services.groups.verdicts import held_until, summary, verdict
from rollouts.services.transitions import DB_NOW, DbTime, EachOf, transition
from rollouts.states import GroupState
from rollouts.storable import MAX_ENVIRONMENT_VERSION, displayable

LANES = 1
"""Transactions of settling at a time in one process."""
MAX_TOGETHER = 32
"""Groups that share a transaction at most."""

_OF_LEASE = ("token", "holder", "run_id")
_OF_GROUP = ("run_id", "environment_id", "environment__name", "purpose", "problem_index")
_OF_RUN = ("config", "kind", "live_version", "next_step")
"""What is looked at here: models whole cost as much as the rest of a transaction."""


class _Played(NamedTuple):
    """What the episodes of one leased group left."""

    token: uuid.UUID
    group: PackedGroup
    rollouts: Sequence[PlayedRollout]
    worker: str
    environment_version: str


class _Settled(NamedTuple):
    """A group whose rollouts are stored."""

    run: Run
    lease: Lease
    columns: dict[str, Any]

    @property
    def place(self) -> tuple[int, int]:
        """In the order in which problems are locked."""
        return self.lease.group.environment_id, self.lease.group.problem_index or 0


class _Fate(NamedTuple):
    """What becomes of groups, and by whom."""

    state: GroupState
    reason: Reason | None
    held_until: DbTime | None
    holder: str


def settle(
    *, token: str, problem_key: str, rollouts: list[PlayedRollout], worker: str, environment_version: str = ""
) -> GroupState:
    """Store what a leased group's episodes left and end its lease; return the state the group went to.

    ``environment_version``: of the environment that scored them; empty when none could be loaded. Raises LeaseLost when
    the token was superseded or the group was given up, Invalid when the rollouts do not hold together or are not as
    many as were claimed; nothing of it is stored then. Locks the lease, then the group, then its problem where there
    are pools.
    """
    records, arrays = pack_rollouts(rollouts)
    group = PackedGroup(environment="", problem_key=displayable(problem_key)[:200], rollouts=records, arrays=arrays)
    check_rollouts(group, may_lack_tokens=True)  # whether they may is the run's to say, below
    played = _Played(
        uuid.UUID(str(token)), group, rollouts, worker, displayable(environment_version)[:MAX_ENVIRONMENT_VERSION]
    )
    if connection.in_atomic_block:  # what another thread commits for us would not be part of the caller's transaction
        return _settle([played])[0]
    return _together(played)


def _settle(played: Sequence[_Played]) -> list[GroupState]:
    """Settle all or none; the states that the groups went to."""
    by_token = {each.token: each for each in played}
    with transaction.atomic():
        leased = Lease.objects.select_for_update(of=("self",)).select_related("group__environment")
        needed = leased.only(*_OF_LEASE, *(f"group__{name}" for name in _OF_GROUP))
        found = list(needed.filter(token__in=list(by_token)).order_by("pk"))
        if len(found) < len(played):
            raise LeaseLost
        runs = Run.objects.only(*_OF_RUN).in_bulk({lease.run_id for lease in found})
        incoming = [_incoming(runs[lease.run_id], lease, by_token[lease.token]) for lease in found]
        insert_rollouts(incoming)
        fates: defaultdict[_Fate, list[_Settled]] = defaultdict(list)
        for lease, each in zip(found, incoming, strict=True):
            run = runs[lease.run_id]
            state, reason = verdict(run, lease.group.purpose, each.group)
            fate = _Fate(state, reason, held_until(run, each.group.environment, state), lease.holder)
            columns = {
                "problem_key": each.group.problem_key,
                "environment_version": each.group.environment_version,
                **summary(run, each.group),
            }
            fates[fate].append(_Settled(run, lease, columns))
        for fate, settled in fates.items():
            _move(fate, settled)
        # Of those that are held people may replace the rewards.
        final = [done for fate, settled in fates.items() if fate.state != GroupState.HELD for done in settled]
        for done in sorted(final, key=lambda done: done.place):
            _rate(done)
        Lease.objects.filter(pk__in=[lease.pk for lease in found]).delete()
    states = {each.lease.token: fate.state for fate, settled in fates.items() for each in settled}
    return [states[each.token] for each in played]


def _move(fate: _Fate, settled: Sequence[_Settled]) -> None:
    """Raises LeaseLost when one is played no more."""
    columns: dict[str, Any] = {name: EachOf([each.columns[name] for each in settled]) for name in settled[0].columns}
    moved = transition(
        ScoredGroup,
        [each.lease.group_id for each in settled],
        to=fate.state,
        actor=f"driver:{fate.holder}",
        reason=fate.reason,
        settled_at=DB_NOW,
        review_until=fate.held_until,
        **columns,
    )
    if len(moved) < len(settled):
        raise LeaseLost


def _rate(settled: _Settled) -> None:
    counted = settled.columns
    problems.rate(
        settled.run,
        settled.lease.group,
        scored=counted["scored_count"],
        solved=counted["solved_count"],
        reward_mean=counted["reward_mean"],
    )


_together = Combiner(_settle, limit=MAX_TOGETHER, lanes=LANES, is_of_all=database_is_away)


def _incoming(run: Run, lease: Lease, played: _Played) -> Incoming:
    """Raises Invalid where the rollouts are not those of the claim."""
    _check_whole(run, lease.group, played.rollouts)
    named = replace(
        played.group, environment=lease.group.environment.name, environment_version=played.environment_version
    )
    return Incoming(lease.group, named, played.worker)


def _check_whole(run: Run, group: ScoredGroup, rollouts: Sequence[PlayedRollout]) -> None:
    episodes, seats = leases.sampling_of(run, group).group_size, leases.own_seats_of(run, group)
    wanted = seats * episodes
    if len(rollouts) != len(wanted):
        told = f"the claim asks for {len(wanted)}, these are {len(rollouts)}; send failed episodes too"
    elif not run.parsed.model.endpoint and any(lacks_tokens(each, len(each.token_ids)) for each in rollouts):
        told = f"token_ids {NO_TOKENS}"
    elif [rollout.seat for rollout in rollouts] != wanted:
        told = f"the claim asks for matches one after another, each of the seats {', '.join(seats)} in this order"
    else:
        return
    raise Invalid("Nothing was stored: a group is settled whole.", fields={"rollouts": told})
