"""Write metric points. A point is (run, key, step); writing it again overwrites it."""

import math
from collections.abc import Mapping

from django.db import connection

from environments.visible import visible
from rollouts import bell
from rollouts.errors import Invalid
from rollouts.models import Run
from rollouts.storable import FINITE, is_name

MAX_KEYS = 500
"""Of one step in one write."""


def record(run: Run, *, step: int, values: Mapping[str, float]) -> None:
    """Upsert the points of one step. Raises Invalid on a non-finite value or an overlong key."""
    _write(run, step, values, on_conflict="EXCLUDED.value")


def accumulate(run: Run, *, step: int, values: Mapping[str, float]) -> None:
    """Add to the points of one step, for what several workers measure in parts (seconds, tokens)."""
    _write(run, step, values, on_conflict="rollouts_metricpoint.value + EXCLUDED.value")


def fitting(*layers: Mapping[str, float]) -> dict[str, float]:
    """Of values whose names and number nobody here chose, what `record` takes: no figure may refuse what it is of.

    What matters most comes first: a layer that would pass the bound is left out whole, as are all after it. A key that
    does not fit is left out too. Cut, it would stand for others that begin alike, and no chart would find it.
    """
    kept: dict[str, float] = {}
    for layer in layers:
        merged = {key: value for key, value in layer.items() if _is_key(key) and _is_finite(value)} | kept
        if len(merged) > MAX_KEYS:
            break
        kept = merged
    return kept


def _write(run: Run, step: int, values: Mapping[str, float], *, on_conflict: str) -> None:
    faults = {f"metrics.{key}": "must be finite" for key, value in values.items() if not _is_finite(value)}
    faults |= {
        f"metrics.{visible(key)}": "a key has 1 to 100 characters, none of which hides or controls"
        for key in values
        if not _is_key(key)
    }
    if len(values) > MAX_KEYS:
        faults["metrics"] = f"at most {MAX_KEYS} keys"
    if faults:
        raise Invalid("Metrics are finite numbers under names.", fields=faults)
    if not values:
        return
    ordered = sorted(values.items())  # one lock order for concurrent writers of the same points
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            INSERT INTO rollouts_metricpoint (run_id, step, key, value, recorded_at)
            SELECT %s, %s, point.key, point.value, clock_timestamp()
            FROM unnest(%s::text[], %s::float8[]) AS point(key, value)
            ON CONFLICT (run_id, key, step)
            DO UPDATE SET value = {on_conflict}, recorded_at = EXCLUDED.recorded_at
            """,
            [
                run.pk,
                step,
                [key for key, _ in ordered],
                [float(value) for _, value in ordered],
            ],
        )
    bell.ring_after_commit(run.pk, is_flow=True)


def _is_finite(value: float) -> bool:
    return math.isfinite(value) and abs(value) <= FINITE


def _is_key(key: str) -> bool:
    return 0 < len(key) <= 100 and is_name(key)
