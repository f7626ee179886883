"""Reads of metric points. Series are bucketed in SQL, so that a browser never gets more than it can draw."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from django.db import connection
from django.db.models import QuerySet

from rollouts.models import MetricPoint, Run
from rollouts.sql import load

MAX_POINTS = 1500

Point = tuple[int, float, float, float]
"""(last step of the bucket, mean, minimum, maximum)."""


def series(run: Run, keys: Sequence[str], *, points: int = MAX_POINTS, after_step: int = -1) -> dict[str, list[Point]]:
    """Key -> points in step order; a key without points has an empty list. One query."""
    found: dict[str, list[Point]] = {key: [] for key in keys}
    with connection.cursor() as cursor:
        cursor.execute(
            load("metric_series"),
            {
                "run_id": run.pk,
                "keys": list(keys),
                "points": max(1, min(points, MAX_POINTS)),
                "after_step": after_step,
            },
        )
        for key, step, value, low, high in cursor.fetchall():
            found[key].append((step, value, low, high))
    return found


def list_keys(run: Run) -> list[str]:
    """Every metric key the run has, sorted."""
    return list(MetricPoint.objects.filter(run=run).order_by("key").values_list("key", flat=True).distinct())


def latest(run: Run, keys: Iterable[str]) -> dict[str, tuple[int, float]]:
    """Key -> (step, value) of its newest point; keys without points are absent. One query."""
    rows: QuerySet[MetricPoint, tuple[str, int, float]] = (
        MetricPoint.objects.filter(run=run, key__in=list(keys))
        .order_by("key", "-step")
        .distinct("key")
        .values_list("key", "step", "value")
    )
    return {key: (step, value) for key, step, value in rows}


def sparklines(run_ids: Sequence[int], *, key: str = "reward/mean", points: int = 40) -> dict[int, list[float]]:
    """Run id -> the shape of one metric in few points, for many runs in one query."""
    found: dict[int, list[float]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute(load("sparklines"), {"run_ids": list(run_ids), "key": key, "points": points})
        for run_id, value in cursor.fetchall():
            found[run_id].append(value)
    return dict(found)
