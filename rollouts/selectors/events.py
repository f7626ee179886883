"""Reads of the event log."""

from collections.abc import Iterable

from django.db.models import OuterRef, QuerySet, Subquery

from rollouts.models import Event, Run


def marks(run_ids: Iterable[int]) -> list[tuple[str, int]]:
    """(run key, newest event id) for each run; 0 when it has no event. One query, one index look-up per run."""
    newest = Event.objects.filter(run=OuterRef("pk")).order_by("-id").values("id")[:1]
    rows = Run.objects.filter(id__in=list(run_ids)).annotate(seq=Subquery(newest)).values_list("key", "seq")
    return [(key, seq or 0) for key, seq in rows]


def list_recent(run: Run, *, limit: int = 50, after_seq: int | None = None) -> QuerySet[Event]:
    """Newest events first; with ``after_seq`` only those with a larger id."""
    events = Event.objects.filter(run=run)
    if after_seq is not None:
        events = events.filter(id__gt=after_seq)
    return events.order_by("-id")[:limit]
