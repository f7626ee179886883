"""Store scored groups of external environments.

A return means the rows are committed and survive kill -9. Locks no row, only the run's gate: an advisory lock, shared
by submissions and exclusive for the end of a run (see `close_gate`).
"""

import hashlib
import uuid
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from django.db import IntegrityError, connection, transaction

from rollouts import bell
from rollouts.crashpoints import CrashPoint, crash_point
from rollouts.errors import Conflict, Invalid, RunOver, StateConflict
from rollouts.formats.arrays import PackedGroup
from rollouts.formats.checks import check_groups
from rollouts.models import Purpose, Run, RunEnvironment, RunKind, ScoredGroup
from rollouts.services.groups.combining import Combiner, database_is_away
from rollouts.services.groups.insertion import Incoming, insert_groups, insert_rollouts
from rollouts.services.groups.repetition import check_repeated
from rollouts.services.groups.verdicts import held_until, summary, verdict
from rollouts.services.transitions import stored
from rollouts.sql import binary_cursor, in_pipeline, load, pipelined_transaction
from rollouts.states import RUN_TRAINING, RunState
from rollouts.storable import displayable

MAX_ENVIRONMENTS = 100
LANES = 1
"""Transactions of submissions at a time in one process."""
MAX_TOGETHER = 64
"""Submissions that share a transaction at most."""
PATIENCE_S = 0.01
"""So long a transaction waits for submissions that are being decoded: about as long as it takes itself."""
GATE = 1_919_251_321
"""First key of the advisory locks that gate submissions; the second is the run."""


def submit(run: Run, groups: Sequence[PackedGroup], *, actor: str) -> list[str]:
    """Store groups that an external environment scored, all or none; return their keys in order.

    A key the run already has is not stored again, so a retry is harmless. Raises Invalid with every field at fault,
    Conflict when a key was used for another group, RunOver when nothing more will be trained. Holds the run's gate
    open until it commits. What several threads submit at the same time shares a transaction.
    """
    check_groups(groups)
    if run.kind not in {RunKind.RL, RunKind.EXTERNAL}:
        raise Conflict(f"Run {run.key} is supervised: it trains on its data file and takes no groups.")
    if connection.in_atomic_block:  # what another thread commits for us would not be part of the caller's transaction
        return _store([_Submission(run, groups, actor)])[0]
    return _together(_Submission(run, groups, actor))


@dataclass(frozen=True)
class _Submission:
    run: Run
    groups: Sequence[PackedGroup]
    actor: str


def _store(submissions: Sequence[_Submission]) -> list[list[str]]:
    """Store all or none; the keys of each. They are in the order they came in, run by run."""
    of_one_run = len({submission.run.pk for submission in submissions}) == 1
    if of_one_run and not connection.in_atomic_block:
        with suppress(_Irregular, IntegrityError):
            return _store_blindly(submissions)
    keys: dict[int, list[str]] = {}
    with transaction.atomic():
        # Runs in the order of their ids, as every process takes them: then nobody waits in a circle.
        for run_id in sorted({submission.run.pk for submission in submissions}):
            of_run = [(at, each) for at, each in enumerate(submissions) if each.run.pk == run_id]
            stored = _store_of_run(of_run[0][1].run, [each for _, each in of_run])
            keys |= {at: own for (at, _), own in zip(of_run, stored, strict=True)}
        crash_point(CrashPoint.AFTER_INSERT)
    crash_point(CrashPoint.AFTER_COMMIT)
    return [keys[at] for at in range(len(submissions))]


class _Irregular(Exception):
    """The submission needs a closer look than `_store_blindly` takes."""


def _store_blindly(submissions: Sequence[_Submission]) -> list[list[str]]:
    """Store groups of one run as if no key were repeated and no environment new, in two round trips.

    Both are rare. Raises _Irregular for a new environment. A repeated key leaves rollouts without their group, which
    the commit refuses: IntegrityError. Nothing is stored then.
    """
    run = submissions[0].run
    with pipelined_transaction():
        gate = _pass_gate(run, groups=sum(len(each.groups) for each in submissions))
        if any(group.environment not in gate.environments for each in submissions for group in each.groups):
            raise _Irregular
        incoming = _incoming(run, gate, submissions)
        crash_point(CrashPoint.BEFORE_INSERT)
        insert_groups(run.pk, incoming)
        insert_rollouts(incoming)
        crash_point(CrashPoint.AFTER_INSERT)
    crash_point(CrashPoint.AFTER_COMMIT)
    bell.ring_after_commit(run.pk, is_flow=True)
    return _keys(submissions, incoming)


def _store_of_run(run: Run, submissions: Sequence[_Submission]) -> list[list[str]]:
    gate = _pass_gate(run, groups=sum(len(each.groups) for each in submissions))
    _add_environments(run, gate.environments, {group.environment for each in submissions for group in each.groups})
    incoming = _incoming(run, gate, submissions)
    crash_point(CrashPoint.BEFORE_INSERT)
    insert_groups(run.pk, incoming)
    stored = set(ScoredGroup.objects.filter(pk__in=[each.row.pk for each in incoming]).values_list("pk", flat=True))
    check_repeated(run, [each for each in incoming if each.row.pk not in stored])
    insert_rollouts([each for each in incoming if each.row.pk in stored])
    bell.ring_after_commit(run.pk, is_flow=True)
    return _keys(submissions, incoming)


def _incoming(run: Run, gate: "_Gate", submissions: Sequence[_Submission]) -> list[Incoming]:
    """What to store, in order. Raises what `submit` raises for groups that the run does not take."""
    _check_takes_groups(run, gate.state)
    run = copy(run)  # another thread may submit to the same object
    run.next_step, run.live_version = gate.next_step, gate.live_version
    ids = iter(gate.ids)
    rows = [
        (_row(run, next(ids), gate.environments[group.environment], group), group, each.actor)
        for each in submissions
        for group in each.groups
    ]
    return [
        Incoming(row, group, displayable(actor)[:150], held_until(run, group.environment, row.state))
        for row, group, actor in rows
    ]


def _keys(submissions: Sequence[_Submission], incoming: Sequence[Incoming]) -> list[list[str]]:
    keys = iter([each.row.key for each in incoming])
    return [list(islice(keys, len(each.groups))) for each in submissions]


_together = Combiner(_store, limit=MAX_TOGETHER, lanes=LANES, patience_s=PATIENCE_S, is_of_all=database_is_away)
preparing = _together.preparing
"""A block in which a thread decodes what it then submits: others that submit wait a moment for it."""


def derived_keys(idempotency_key: str, count: int) -> list[str]:
    """Keys for groups that have none, so that a repeated request with the same Idempotency-Key stores nothing twice."""
    return [hashlib.sha256(f"{idempotency_key}\n{at}".encode()).hexdigest() for at in range(count)]


def close_gate(run: Run) -> None:
    """Take the run's advisory lock exclusively until this transaction ends. Waits for submissions that hold it shared.

    To be called before the run is moved to a state in which it takes no groups, or its waiting groups are archived: no
    submission can commit in between. A shared lock on the run's row would be a write to it by every submission.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [GATE, run.pk % 2**31])


class _Gate(NamedTuple):
    """What a submission must know of its run."""

    state: str
    """Cannot change before we commit: ending a run takes the gate exclusively first."""
    next_step: int
    live_version: int
    environments: dict[str, int]
    """Ids by name."""
    ids: list[int]
    """For the groups that come in."""


def _pass_gate(run: Run, *, groups: int) -> _Gate:
    """Lock the gate against those who close it, then look. The look takes its snapshot when the lock is had."""
    with binary_cursor() as cursor, nullcontext() if in_pipeline() else cursor.connection.pipeline():
        cursor.execute("SELECT pg_advisory_xact_lock_shared(%s, %s)", [GATE, run.pk % 2**31])
        cursor.execute(load("pass_gate"), {"run_id": run.pk, "groups": groups})
        row = cursor.fetchone()
    assert row is not None, "runs are never deleted"
    return _Gate(*row)


def _check_takes_groups(run: Run, state: str) -> None:
    if state == RunState.PENDING:
        raise StateConflict(f"Run {run.key} has not been started yet. Submit again in a few seconds.")
    if state not in RUN_TRAINING:
        raise RunOver(f"Run {run.key} is {state} and takes no more groups.")


def _add_environments(run: Run, known: dict[str, int], names: set[str]) -> None:
    """Make those that the run does not have. In name order: two submits that insert the same cannot deadlock."""
    missing = sorted(names - known.keys())
    if len(known) + len(missing) > MAX_ENVIRONMENTS:
        raise Invalid(
            "Nothing was stored: the run has too many environments.",
            fields={"environment": f"a run has at most {MAX_ENVIRONMENTS}; tell problems apart by problem_key"},
        )
    for name in missing:
        known[name] = RunEnvironment.objects.get_or_create(run=run, name=name)[0].pk


def _row(run: Run, group_id: int, environment_id: int, group: PackedGroup) -> ScoredGroup:
    state, reason = verdict(run, Purpose.TRAIN, group)
    reason_code, reason_params = stored(reason)
    row = ScoredGroup(
        id=group_id,
        run=run,
        environment_id=environment_id,
        environment_version=group.environment_version,
        key=group.key or str(uuid.uuid4()),
        problem_key=group.problem_key,
        state=state,
        reason_code=reason_code,
        reason_params=reason_params,
        **summary(run, group),
    )
    newest = run.next_step + 1
    if row.max_policy_version is not None and row.max_policy_version > newest:
        raise Invalid(
            "Nothing was stored: a rollout names a policy version that does not exist yet.",
            fields={"last_policy_version": f"must be at most {newest}"},
        )
    return row
