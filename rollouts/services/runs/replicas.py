"""Rows of the processes that launchers start. Launchers act; these functions only keep the record."""

from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import Value
from django.db.models.functions import Now

from rollouts.models import Replica, ReplicaKind, Run
from rollouts.reasons import Reason, ReasonCode
from rollouts.services.transitions import DB_NOW, move, record_creation, stored
from rollouts.states import ReplicaState


def create(
    run: Run, *, kind: ReplicaKind, slot: int, launcher: str, policy: str = "", actor: str = "reconciler"
) -> Replica:
    """Reserve a slot for a process that is about to be started. Raises IntegrityError if one is alive there."""
    with transaction.atomic():
        replica = Replica.objects.create(run=run, kind=kind, policy=policy, slot=slot, launcher=launcher)
        replica.directory = str(run.directory / "replicas" / replica.name)
        replica.save(update_fields=["directory"])
        record_creation([replica], run_id=run.pk, state=ReplicaState.STARTING, actor=actor)
    return replica


def address(replica: Replica, *, base_url: str) -> None:
    """Note where a starting inference server will listen."""
    Replica.objects.filter(pk=replica.pk).update(base_url=base_url)
    replica.base_url = base_url


def given(replica: Replica, *, gpus: int, cores: int) -> None:
    """Note what a replica that is about to be launched has to compute on."""
    Replica.objects.filter(pk=replica.pk).update(gpus=gpus, cores=cores)
    replica.gpus, replica.cores = gpus, cores


def located(replica: Replica, *, job_number: str, host: str) -> None:
    """Note the number of its job, which people ask their scheduler about, and where it is."""
    Replica.objects.filter(pk=replica.pk).update(job_number=job_number, host=host)
    replica.job_number, replica.host = job_number, host


def waits(replica: Replica, *, reason: Reason) -> None:
    """Note why a starting replica is not at work yet. No state changes, so no event."""
    code, params = stored(reason)
    if (replica.reason_code, replica.reason_params) != (code, params):
        Replica.objects.filter(pk=replica.pk, begun_at=None).update(reason_code=code, reason_params=params)
        replica.refresh_from_db()


def begun(replica: Replica, *, base_url: str = "", hours: float = 0.0) -> None:
    """Note that its process runs, and for how long it may (0: no end is set); where it will answer if that was not
    known."""
    columns: dict[str, Any] = {"begun_at": Now()}
    if base_url:
        columns["base_url"] = base_url
    if hours:
        columns["due_at"] = Now() + Value(timedelta(hours=hours))
    Replica.objects.filter(pk=replica.pk, begun_at=None).update(**columns)
    # A trainer may have registered by now, and said something else.
    Replica.objects.filter(pk=replica.pk, reason_code=ReasonCode.QUEUED).update(reason_code="", reason_params={})
    replica.refresh_from_db()


def ready(replica: Replica, *, loaded_version: int | None = None, reason: Reason | None = None) -> Replica:
    """It answered a real request."""
    return move(
        replica,
        to=ReplicaState.READY,
        actor="reconciler",
        reason=reason,
        answered_at=DB_NOW,
        probe_failures=0,
        loaded_version=loaded_version,
    )


def answered(replica: Replica, *, loaded_version: int | None = None) -> None:
    """A ready replica answered again, or was seen to serve another version. No state changes, so no event."""
    columns = {"answered_at": Now(), "probe_failures": 0}
    if loaded_version is not None:
        columns["loaded_version"] = loaded_version
    Replica.objects.filter(pk=replica.pk).update(**columns)
    replica.refresh_from_db()


def suspect(replica: Replica, *, reason: Reason) -> Replica:
    """A probe failed: no new work goes to it until it answers."""
    failures = replica.probe_failures + 1
    if replica.state == ReplicaState.SUSPECT:
        code, params = stored(reason)
        Replica.objects.filter(pk=replica.pk).update(probe_failures=failures, reason_code=code, reason_params=params)
        replica.refresh_from_db()
        return replica
    return move(
        replica,
        to=ReplicaState.SUSPECT,
        actor="reconciler",
        reason=reason,
        probe_failures=failures,
    )


def stopping(replica: Replica, *, reason: Reason | None) -> Replica:
    return move(replica, to=ReplicaState.STOPPING, actor="reconciler", reason=reason)


def exited(replica: Replica, *, exit_code: int | None, reason: Reason | None = None) -> Replica:
    """Its process ended as it should."""
    return move(
        replica,
        to=ReplicaState.EXITED,
        actor="reconciler",
        reason=reason,
        exit_code=exit_code,
        ended_at=DB_NOW,
    )


def lost(replica: Replica, *, exit_code: int | None, reason: Reason) -> Replica:
    """Its process died, or was ejected; another takes its place."""
    return move(
        replica,
        to=ReplicaState.LOST,
        actor="reconciler",
        reason=reason,
        exit_code=exit_code,
        ended_at=DB_NOW,
    )
