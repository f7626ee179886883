"""What replicas are busy with, overwritten at every look."""

from datetime import timedelta

from django.db import connection
from django.db.models import Q, Value
from django.db.models.functions import Now

from rollouts.models import Replica, ReplicaLoad
from rollouts.sql import load

HEARTBEAT_EVERY_S = 4.0
"""A younger heartbeat is not written again, however often somebody looks."""
_PROBES = 1
"""Tokens that the control plane itself may have asked for between two reports: what a probe generates."""


def heard(replica: Replica, heartbeat_age_s: float) -> None:
    """Note how old the heartbeat of a replica is. One query, or two for the first."""
    moment = Now() - Value(timedelta(seconds=heartbeat_age_s))
    known = ReplicaLoad.objects.filter(replica=replica)
    stale = Q(heartbeat_at=None) | Q(heartbeat_at__lt=Now() - Value(timedelta(seconds=HEARTBEAT_EVERY_S)))
    if not known.filter(stale).update(heartbeat_at=moment) and not known.exists():
        ReplicaLoad.objects.bulk_create([ReplicaLoad(replica=replica, heartbeat_at=moment)], ignore_conflicts=True)


def report(replica: Replica, *, running: int, waiting: int, cache_share: float, tokens: int) -> None:
    """Note what an inference server said of itself, and for how long it has been idle. `cache_share`: of its KV cache,
    in use; `tokens`: generated since it began."""
    said = {"running": running, "waiting": waiting, "cache_share": cache_share, "tokens": tokens}
    with connection.cursor() as cursor:
        cursor.execute(load("report_load"), {**said, "replica_id": replica.pk, "probes": _PROBES})
