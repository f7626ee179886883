"""Reads of the event log."""

from collections.abc import Iterable

from django.db import connection
from django.db.models import QuerySet

from rollouts.models import Event, Run
from rollouts.sql import load


def marks(run_ids: Iterable[int]) -> list[tuple[str, int]]:
    """(run key, newest event id) for each run; 0 when it has no event. One query, one index look-up per run.

    Every process asks ten times a second while groups come in, and the ORM would take longer than the database.
    """
    with connection.cursor() as cursor:
        cursor.execute(load("marks"), {"run_ids": list(run_ids)})
        found: list[tuple[str, int]] = cursor.fetchall()
    return found


def list_recent(run: Run, *, limit: int = 50, after_seq: int | None = None) -> QuerySet[Event]:
    """Newest events first; with ``after_seq`` only those with a larger id."""
    events = Event.objects.filter(run=run)
    if after_seq is not None:
        events = events.filter(id__gt=after_seq)
    return events.order_by("-id")[:limit]
