"""Reads of metric points. Series are bucketed in SQL, so that a browser never gets more than it can draw."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from django.db import connection

from rollouts.models import MetricPoint, Run
from rollouts.sql import load

MAX_POINTS = 1500

Point = tuple[int, float, float, float, int]
"""(last step of the bucket, mean, minimum, maximum, first step)."""


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
        for key, *point in cursor.fetchall():
            found[key].append(tuple(point))
    return found


def list_keys(run: Run) -> list[str]:
    """Every metric key the run has, sorted."""
    with connection.cursor() as cursor:
        cursor.execute(load("metric_keys"), {"run_id": run.pk})
        return [key for (key,) in cursor.fetchall()]


def latest(run: Run, keys: Iterable[str]) -> dict[str, tuple[int, float]]:
    """Key -> (step, value) of its newest point; keys without points are absent. One query."""
    with connection.cursor() as cursor:
        cursor.execute(load("newest_metrics"), {"run_id": run.pk, "keys": list(keys)})
        return {key: (step, value) for key, step, value in cursor.fetchall()}


def first(run: Run, key: str) -> tuple[int, float] | None:
    """(step, value) of the oldest point of a key. One query."""
    return MetricPoint.objects.filter(run=run, key=key).order_by("step").values_list("step", "value").first()


def at(run: Run, step: int, keys: Iterable[str]) -> dict[str, float]:
    """Key -> value of its point of one step; keys without one are absent. One query."""
    return dict(MetricPoint.objects.filter(run=run, step=step, key__in=list(keys)).values_list("key", "value"))


def sparklines(run_ids: Sequence[int], *, key: str = "reward/mean", points: int = 40) -> dict[int, list[float]]:
    """Run id -> the shape of one metric in few points, the last of which is the newest, for many runs in one query."""
    found: dict[int, list[float]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute(load("sparklines"), {"run_ids": list(run_ids), "key": key, "points": points})
        for run_id, value in cursor.fetchall():
            found[run_id].append(value)
    return dict(found)
