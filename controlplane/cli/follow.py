"""Watch a run from a terminal: one line per change of state, one per few seconds of progress."""

import time
from collections.abc import Callable

from django.db import DatabaseError, connection

from rollouts.models import Run
from rollouts.selectors import metrics, runs
from rollouts.states import RunState

_LOOK_EVERY_S = 1.0
_PROGRESS_EVERY_S = 5.0
_HEALTH_AFTER_S = 20.0
"""Silence after which a line says what the run is waiting for."""
_SHOWN = {
    "reward/mean": "reward",
    "loss/mean": "loss",
    "lag/max": "lag",
    "mismatch_kl/mean": "mismatch_kl",
    "perf/throughput": "tokens/s",
}


def follow(key: str, show: Callable[[str], None]) -> int:
    """Show the progress of a run until it is over; returns 0 when it finished, else 1.

    Outlives a database that is away for a while: it asks again.
    """
    state, step, evaluations, shown_at = "", -1, 0, 0.0
    while True:
        try:
            run = Run.objects.get(key=key)
            now = time.monotonic()
            if run.state != state:
                state, shown_at = run.state, now
                show(f"{key} {RunState(state).value}{f': {run.state_reason}' if run.state_reason else ''}")
            evaluated = _evaluations(run)
            for line in evaluated[evaluations:]:
                show(f"{key} {line}")
            evaluations = len(evaluated)
            if run.is_over:
                return 0 if run.state == RunState.FINISHED else 1
            if run.next_step != step and now - shown_at >= _PROGRESS_EVERY_S:
                step, shown_at = run.next_step, now
                show(f"{key} {_progress(run)}")
            elif now - shown_at >= _HEALTH_AFTER_S:
                shown_at = now
                show(f"{key} {runs.health(run).sentence}")
        except DatabaseError:
            connection.close()
        time.sleep(_LOOK_EVERY_S)


def _progress(run: Run) -> str:
    latest = metrics.latest(run, _SHOWN)
    values = [f"{label} {latest[metric][1]:.3g}" for metric, label in _SHOWN.items() if metric in latest]
    return "  ".join([f"step {run.next_step}/{run.max_steps}", *values])


def _evaluations(run: Run) -> list[str]:
    done = run.evaluations.filter(reward_mean__isnull=False).select_related("environment").order_by("finished_at")
    return [f"evaluation of version {row.measured} on {row.environment}: reward {row.reward_mean:.3f}" for row in done]
