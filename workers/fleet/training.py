"""Keep one trainer running for a run until it has done its last step.

start ─▶ registers ─▶ steps ─▶ finished and exit 0 ─▶ done
  ▲                     │
  └── back-off ── dies without having finished; a step of progress resets the count of restarts

One that died of its input, and said so, is not started again: the run fails with what it said.
"""

import logging
import math
import time
from datetime import datetime

from django.utils import timezone

from rollouts.models import PlacementKind, Replica, ReplicaKind, Run, Scope
from rollouts.reasons import Reason, ReasonCode
from rollouts.selectors import fleet
from rollouts.services.runs import projects, replicas, tokens, trainer_writes
from rollouts.states import ReplicaState
from trainers.client import SLOWEST_BYTES_PER_S
from workers.database import give_back
from workers.fleet import commands, hub, jobs, lifecycle, placing, tries
from workers.fleet.lifecycle import UnrecoverableError
from workers.launchers.base import End, Observation

log = logging.getLogger(__name__)

MAX_RESTARTS = 5
"""Trainers in a row that may die without a step of progress."""
LONGEST_BACK_OFF_S = 60.0
START_DEADLINE_S = 900.0
STEP_DEADLINE_S = 3600.0
"""After this without a call, and the time that its files take, a trainer is taken for hung: one that waits for a batch
goes on asking for it."""
_WRITTEN = 8
"""Bytes that a trainer reads or writes between two calls, for each of a model in 16 bits: weights of 4 bytes with two
moments, a version, and where it starts from."""
EXIT_DEADLINE_S = 60.0
"""Between saying that it has finished and its exit."""
_slept_at: dict[int, float] = {}
"""When the heart of a trainer was last seen not to have beaten for long. It may be lost."""


def tend(run: Run) -> None:
    """Bring the run's trainer one step closer to what is wanted. Raises UnrecoverableError."""
    replica = fleet.list_alive(run, ReplicaKind.TRAINER).first()
    if replica is not None:
        seen = lifecycle.observe(replica)
        if seen.alive:
            if replica.state == ReplicaState.STOPPING or lifecycle.has_begun(replica, seen):
                _watch(run, replica, awake_s=_awake_s(replica, seen))
            return
        _record_exit(run, replica, seen)
    run.refresh_from_db()
    if run.trainer_finished_at is None:
        _start(run)


def is_gone(run: Run) -> bool:
    """Whether no trainer of the run is left."""
    return not fleet.list_alive(run, ReplicaKind.TRAINER).exists()


def _watch(run: Run, replica: Replica, *, awake_s: float) -> None:
    if replica.state == ReplicaState.STOPPING:
        lifecycle.end([replica], reason=replica.reason)
    elif run.trainer_finished_at is not None:
        if _age_s(run.trainer_finished_at) > EXIT_DEADLINE_S:
            lifecycle.end([replica], reason=Reason(ReasonCode.EXIT_OVERDUE))
    elif replica.state == ReplicaState.STARTING:
        if min(awake_s, _age_s(replica.begun_at or replica.created_at)) > START_DEADLINE_S:
            _eject(run, replica, Reason(ReasonCode.EJECTED_UNREGISTERED, deadline_s=START_DEADLINE_S))
    elif replica.state == ReplicaState.READY:
        silent_s = min(awake_s, _age_s(replica.answered_at or replica.state_at))
        if silent_s > STEP_DEADLINE_S and silent_s > (deadline_s := step_deadline_s(run)):
            _eject(run, replica, Reason(ReasonCode.EJECTED_STUCK, step=run.next_step, deadline_s=deadline_s))


def _awake_s(replica: Replica, seen: Observation) -> float:
    """For how long its heart has beaten since it last had not for long: while a job is suspended it does nothing, and
    then it has all of its time again."""
    if (seen.heartbeat_age_s or 0.0) > lifecycle.HEARTBEAT_DEADLINE_S:
        _slept_at[replica.pk] = time.monotonic()
    return time.monotonic() - _slept_at.get(replica.pk, -math.inf)


def step_deadline_s(run: Run) -> float:
    """Seconds without a call after which the run's trainer is taken for hung."""
    written = _WRITTEN * hub.size_bytes(run.parsed.model.path)
    return STEP_DEADLINE_S + written / SLOWEST_BYTES_PER_S


def _eject(run: Run, replica: Replica, reason: Reason) -> None:
    lifecycle.eject(replica, reason=reason)
    trainer_writes.count_trainer_restart(run)


def _record_exit(run: Run, replica: Replica, seen: Observation) -> None:
    # It may have finished after our look at the run and before our look at the process.
    run.refresh_from_db()
    if run.trainer_finished_at is not None:
        give_back()
        lifecycle.launcher_of(replica).sweep(str(replica.token), lifecycle.SWEEP_DEADLINE_S)
        reason = Reason(ReasonCode.TRAINER_FINISHED) if seen.end is End.DIED else lifecycle.reason_of(seen)
        replicas.exited(replica, exit_code=seen.exit_code, reason=reason)
        return
    lifecycle.mark_lost(replica, seen)
    if seen.end not in lifecycle.OUTSIDE_ENDS:
        restarts = trainer_writes.count_trainer_restart(run)
        log.warning(
            "run %s: trainer died, %s of %s without progress: %s", run.key, restarts, MAX_RESTARTS, replica.state_reason
        )


def _start(run: Run) -> None:
    past = Replica.objects.filter(run=run, kind=ReplicaKind.TRAINER).order_by("-id")
    last = past.first()
    if last and (fault := lifecycle.fault_of(last)):
        raise UnrecoverableError(Reason(ReasonCode.TRAINER_INPUT, fault=fault))
    if tries.is_away(past):
        return
    failures = run.trainer_restarts
    if failures >= MAX_RESTARTS:
        why = last.reason if last else None
        raise UnrecoverableError(Reason(ReasonCode.TRAINER_HOPELESS, times=failures, last=why))
    if last and last.ended_at and _age_s(last.ended_at) < tries.back_off_s(failures, longest_s=LONGEST_BACK_OFF_S):
        return
    replica = lifecycle.reserve(run, kind=ReplicaKind.TRAINER, slot=0)
    token = tokens.create(
        user=run.created_by or projects.ensure_admin(),
        project=run.project,
        name=tokens.name_of(replica),
        scopes=[Scope.TRAIN],
        ttl=tokens.TRAINER_TTL,
        run=run,
    )
    command = commands.trainer(
        run.parsed,
        run=run.key,
        directory=run.directory,
        url=jobs.way_here(replica),
        token=token,
        resumes_from=run.forked_from.path if run.forked_from and run.fork_optimizer else "",
        gpus=placing.held(run, PlacementKind.GPU),
        held=placing.held(run, PlacementKind.CORE),
        cores=jobs.cores_of(run, ReplicaKind.TRAINER),
    )
    failed = past.filter(state=ReplicaState.LOST).exclude(reason_code__in=lifecycle.OUTSIDE_REASONS)[:failures]
    # Of several nodes nobody says which was at fault.
    lifecycle.launch(replica, command, after=failed if run.parsed.trainer.nodes == 1 else ())
    replica.refresh_from_db()
    if replica.state == ReplicaState.LOST and not tries.was_away(replica):
        trainer_writes.count_trainer_restart(run)


def _age_s(moment: datetime) -> float:
    return (timezone.now() - moment).total_seconds()
