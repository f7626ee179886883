"""Reads of the event log."""

from django.db.models import QuerySet

from rollouts.models import Event, Run


def list_recent(run: Run, *, limit: int) -> QuerySet[Event]:
    """Newest events first."""
    return Event.objects.filter(run=run).order_by("-id")[:limit]


def list_after(run: Run, seq: int, *, limit: int) -> QuerySet[Event]:
    """The events behind a number, oldest first: the last of them is where to go on."""
    return Event.objects.filter(run=run, id__gt=seq).order_by("id")[:limit]
