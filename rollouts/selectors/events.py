"""Reads of the event log."""

from django.db.models import QuerySet

from rollouts.models import Event, Run


def list_recent(run: Run, *, limit: int = 50, after_seq: int | None = None) -> QuerySet[Event]:
    """Newest events first; with ``after_seq`` only those with a larger id."""
    events = Event.objects.filter(run=run)
    if after_seq is not None:
        events = events.filter(id__gt=after_seq)
    return events.order_by("-id")[:limit]
