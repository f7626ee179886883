"""Reads of replicas."""

from django.db.models import QuerySet

from rollouts.models import Replica, ReplicaKind, Run
from rollouts.states import REPLICA_ALIVE, ReplicaState


def list_alive(run: Run, kind: ReplicaKind | None = None) -> QuerySet[Replica]:
    """Replicas of a run that have a process, or are about to."""
    replicas = Replica.objects.filter(run=run, state__in=REPLICA_ALIVE).order_by("kind", "slot")
    return replicas if kind is None else replicas.filter(kind=kind)


def list_serving(run: Run) -> QuerySet[Replica]:
    """Inference replicas that work may be sent to."""
    return Replica.objects.filter(run=run, kind=ReplicaKind.INFERENCE, state=ReplicaState.READY).order_by("slot")
