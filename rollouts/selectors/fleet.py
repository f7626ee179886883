"""Reads of replicas."""

from collections.abc import Collection

from django.db.models import QuerySet

from rollouts.models import Replica, ReplicaKind, Run
from rollouts.states import REPLICA_ALIVE, REPLICA_TERMINAL, ReplicaState


def list_alive(run: Run, kind: ReplicaKind | None = None) -> QuerySet[Replica]:
    """Replicas of a run that have a process, or are about to."""
    replicas = Replica.objects.filter(run=run, state__in=REPLICA_ALIVE).order_by("kind", "policy", "slot")
    return replicas if kind is None else replicas.filter(kind=kind)


def list_starting(run: Run) -> QuerySet[Replica]:
    """Inference replicas whose processes have begun and do not answer yet."""
    return list_alive(run, ReplicaKind.INFERENCE).filter(state=ReplicaState.STARTING, begun_at__isnull=False)


def list_serving(run: Run, *, policy: str = "") -> QuerySet[Replica]:
    """Inference replicas that work may be sent to: of the run's own policy, or of one of its `[[policies]]`."""
    ready = Replica.objects.filter(run=run, kind=ReplicaKind.INFERENCE, state=ReplicaState.READY)
    return ready.filter(policy=policy).order_by("slot")


def list_ended(ids: Collection[int]) -> QuerySet[Replica]:
    """Of these replicas, those that have ended."""
    return Replica.objects.filter(pk__in=ids, state__in=REPLICA_TERMINAL)
