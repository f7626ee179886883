"""Episodes that programs outside play: opened by whoever may, finished once, submitted with the others of their group.

    open ─► played through the gateway ─► finish, or the deadline ─► all of the group closed ─► groups.submit

A rollout is durable the moment `finish` returns. A group closes when it has as many finished sessions as it wants, or
when the deadline of each has passed; what was never finished is a failed rollout of it. Lock order: the run's row, the
group's sessions in id order, then what submitting locks.

Of a group that lacks sessions another may be opened at any moment, and who waits for its rows does not see the new one.
So only who holds the run's row may close it: `close_due`.
"""

import hashlib
import logging
import secrets
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec
from django.contrib.auth.models import User
from django.db import models, transaction
from django.db.models import Exists, OuterRef, Q
from django.db.models.functions import Cast, Now
from django.utils import timezone

from environments.types import ErrorKind, PlayedGroup, PlayedRollout, Problem, RolloutError, StopReason
from rollouts.errors import Conflict, ControlPlaneError, Invalid, QueueFull, RunOver, StateConflict
from rollouts.formats.arrays import pack_group
from rollouts.formats.checks import check_groups
from rollouts.models import AgentSession, Membership, Role, Run, RunKind, ScoredGroup
from rollouts.services.groups import intake
from rollouts.states import RUN_TRAINING, RunState
from rollouts.storable import MAX_GROUP_SIZE

log = logging.getLogger(__name__)

LEAST_ROLE = Role.OPERATOR
"""What the owner needs in the run's project."""
MOST_OPEN = 10_000
"""Of one run at a time."""
_KEY_BYTES = 24
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PlayedRollout).decode


class OpenedSession(NamedTuple):
    """A new session, and the only copy of its key."""

    row: AgentSession
    key: str


def open_session(
    run: Run,
    problem: Problem,
    *,
    environment: str,
    environment_version: str = "",
    group: str | None,
    group_size: int,
    deadline_s: float,
    owner: User,
    actor: str,
) -> OpenedSession:
    """Open a session for one episode. Locks the run's row, then the group's sessions.

    Raises Invalid, Conflict for a group that is of another problem or complete, QueueFull, RunOver, StateConflict for a
    run that has not been started yet.
    """
    if run.kind != RunKind.RL:
        raise Conflict(f"Run {run.key} serves no policy to play: sessions need a run of kind rl.")
    if run.state == RunState.PENDING:
        raise StateConflict(f"Run {run.key} has not been started yet. Open the session again in a few seconds.")
    if run.state not in RUN_TRAINING:
        raise RunOver(f"Run {run.key} is {run.state}: nothing more is played for it.")
    if not 0 < group_size <= MAX_GROUP_SIZE:
        raise Invalid(fields={"group_size": f"must lie in 1..{MAX_GROUP_SIZE}"})
    group_key = group or secrets.token_hex(16)
    _check_names(problem, environment, environment_version, group_key)
    try:
        _encode(_failed(problem))
    except OverflowError:
        fault = "hold an integer beyond 64 bits, which no rollout can: send it as a float"
        raise Invalid(fields={"problem.tools": fault}) from None
    if AgentSession.objects.filter(run=run, grouped_at=None, finished_at=None).count() >= MOST_OPEN:
        raise QueueFull(f"Run {run.key} has {MOST_OPEN} sessions open; finish some first.")
    asked: dict[str, Any] = {
        "problem": {"key": problem.key, "messages": msgspec.to_builtins(problem.messages), "tools": problem.tools},
        "environment": environment,
        "environment_version": environment_version,
        "group_size": group_size,
    }
    key = secrets.token_urlsafe(_KEY_BYTES)
    with transaction.atomic():
        _lock_openings(run)
        if ScoredGroup.objects.filter(run=run, key=group_key).exists():
            raise Conflict(f"The run has a group {group_key} already. Open another.")
        others = list(_members(run, group_key))
        # As jsonb a problem is the same in whatever order its keys come.
        members = AgentSession.objects.annotate(played=Cast("problem", models.JSONField()))
        same = {"played" if name == "problem" else name: value for name, value in asked.items()}
        if members.filter(run=run, group_key=group_key).exclude(**same).exists():
            raise Conflict(
                f"Group {group_key} has another problem, environment, version of it or size. "
                "Give each problem its own group."
            )
        if len(others) >= group_size or any(other.grouped_at for other in others):
            raise Conflict(f"Group {group_key} has its {group_size} sessions. Open another group.")
        row = AgentSession.objects.create(
            run=run,
            key_digest=digest(key),
            group_key=group_key,
            owner=owner,
            actor=actor,
            expires_at=timezone.now() + timedelta(seconds=deadline_s),
            **asked,
        )
    return OpenedSession(row, key)


def digest(key: str) -> str:
    """What is stored of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def find_open(key: str) -> AgentSession | None:
    """The session of a key, with its run, while it may be played."""
    return _playable().select_related("run__project").filter(key_digest=digest(key)).first()


def still_open(ids: Iterable[int]) -> set[int]:
    """Those of some sessions that may still be played."""
    return set(_playable().filter(pk__in=list(ids)).values_list("pk", flat=True))


def find_finished(key: str) -> AgentSession | None:
    """The session of a key that was finished."""
    return AgentSession.objects.filter(key_digest=digest(key), finished_at__isnull=False).first()


def finish(session_id: int, rollout: PlayedRollout) -> bool:
    """Store what a session left; whether that completed its group. A second time changes nothing.

    Locks the group's sessions. Not the run's row, so it closes no group that may still get one. Raises Invalid for a
    rollout that cannot be stored, Conflict when its time is over, RunOver.
    """
    row = AgentSession.objects.select_related("run").get(pk=session_id)
    _check(row, rollout)
    with transaction.atomic():
        members = list(_members(row.run, row.group_key))
        mine = next(member for member in members if member.pk == session_id)
        if has_lapsed(mine):
            raise Conflict("The session was not finished in time: it is a failed rollout of its group.")
        if mine.finished_at is None:
            _store(mine, rollout)
        is_whole = len(members) == mine.group_size
        return is_whole and _submit_if_closed(row.run, members)


def close_due(run: Run) -> int:
    """Fail the sessions whose deadline has passed, and submit the groups that are closed by that; how many were.

    Group by group, in a transaction that locks the run's row, then the group's sessions.
    """
    if run.state not in RUN_TRAINING:
        return 0
    due = AgentSession.objects.filter(run=run, grouped_at=None, expires_at__lt=Now())
    return sum(_close(run, group_key) for group_key in sorted(set(due.values_list("group_key", flat=True))))


def _close(run: Run, group_key: str) -> bool:
    """Fail the sessions of a group whose deadline has passed; submit it if that closes it. Whether it did."""
    with transaction.atomic():
        # One transaction: between two, a session of the group could be opened that it would never get.
        _lock_openings(run)
        members = list(_members(run, group_key))
        now = timezone.now()
        for member in members:
            if member.finished_at is None and member.expires_at < now:
                _store(member, _unfinished(member))
        try:
            with transaction.atomic():
                return _submit_if_closed(run, members)
        except (ControlPlaneError, msgspec.MsgspecError) as error:
            # One group that the run cannot take must not hold up the run.
            log.warning("run %s: the group %s of agents cannot be stored: %s", run.key, group_key, error)
            AgentSession.objects.filter(pk__in=[member.pk for member in members]).update(grouped_at=Now())
            return False


def _playable() -> models.QuerySet[AgentSession]:
    """Open ones, of runs that train, whose owners may operate them."""
    roles = [role for role in Role if role.includes(LEAST_ROLE)]
    member = Membership.objects.filter(user=OuterRef("owner"), project=OuterRef("run__project"), role__in=roles)
    return AgentSession.objects.filter(
        Q(owner__is_superuser=True) | Exists(member),
        owner__is_active=True,
        finished_at=None,
        expires_at__gt=Now(),
        run__state__in=RUN_TRAINING,
    )


def has_lapsed(session: AgentSession) -> bool:
    """Whether its deadline passed before anybody finished it."""
    return session.expires_at < (session.finished_at or timezone.now())


def _lock_openings(run: Run) -> None:
    """The run's row orders those who open the sessions of a group, and who closes it. In a transaction."""
    Run.objects.select_for_update(no_key=True).only("pk").get(pk=run.pk)


def _members(run: Run, group_key: str) -> models.QuerySet[AgentSession]:
    return AgentSession.objects.select_for_update(of=("self",)).filter(run=run, group_key=group_key).order_by("pk")


def _store(member: AgentSession, rollout: PlayedRollout) -> None:
    member.record = _encode(rollout)
    member.finished_at = timezone.now()
    AgentSession.objects.filter(pk=member.pk, finished_at=None).update(
        record=member.record, finished_at=member.finished_at
    )


def _submit_if_closed(run: Run, members: Sequence[AgentSession]) -> bool:
    first = members[0]
    is_whole = len(members) == first.group_size
    now = timezone.now()
    is_closed = all(member.finished_at for member in members) and (
        is_whole or all(member.expires_at < now for member in members)
    )
    if not is_closed or first.grouped_at is not None:
        return False
    packed = pack_group(_group(first, [_decode(member.record) for member in members if member.record]), ("groups", 0))
    intake.submit(run, [packed], actor=first.actor)
    AgentSession.objects.filter(pk__in=[member.pk for member in members]).update(grouped_at=Now(), record=None)
    return True


def _group(row: AgentSession, rollouts: list[PlayedRollout]) -> PlayedGroup:
    return PlayedGroup(
        environment=row.environment,
        environment_version=row.environment_version,
        problem_key=row.problem["key"],
        key=row.group_key,
        rollouts=rollouts,
    )


def problem_of(session: AgentSession) -> Problem:
    """What it plays, as it was sent."""
    return msgspec.convert(session.problem, Problem)


def _unfinished(member: AgentSession) -> PlayedRollout:
    seconds = (member.expires_at - member.opened_at).total_seconds()
    rollout = _failed(problem_of(member))
    words = f"The session was not finished within {seconds:.0f} s."
    rollout.error = RolloutError(kind=ErrorKind.BUDGET, type="Unfinished", message=words)
    return rollout


def _failed(problem: Problem) -> PlayedRollout:
    """A rollout of which nothing was sampled."""
    rollout = PlayedRollout(token_ids=[], loss_mask=[], inference_logprobs=[], stop_reason=StopReason.ERROR)
    rollout.messages, rollout.tools = problem.messages, problem.tools
    return rollout


def _check(row: AgentSession, rollout: PlayedRollout) -> None:
    check_groups([pack_group(_group(row, [rollout]), ("groups", 0))])


def _check_names(problem: Problem, environment: str, environment_version: str, group_key: str) -> None:
    named = PlayedGroup(
        environment=environment,
        environment_version=environment_version,
        problem_key=problem.key,
        key=group_key,
        rollouts=[_failed(problem)],
    )
    check_groups([pack_group(named, ("groups", 0))])
