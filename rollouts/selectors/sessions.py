"""Reads of the episodes that programs outside play."""

from dataclasses import dataclass

from django.db.models import Count, Q

from rollouts.models import AgentSession, Run


@dataclass(frozen=True)
class SessionCounts:
    """Sessions of a run."""

    open: int
    waiting: int
    """Finished; others of their group are not."""
    grouped: int
    """Members of a group that was submitted."""


def count(run: Run) -> SessionCounts:
    """One query."""
    counts = AgentSession.objects.filter(run=run).aggregate(
        open=Count("pk", filter=Q(finished_at=None)),
        waiting=Count("pk", filter=Q(finished_at__isnull=False, grouped_at=None)),
        grouped=Count("pk", filter=Q(grouped_at__isnull=False)),
    )
    return SessionCounts(**counts)
