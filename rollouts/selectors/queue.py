"""How many groups wait for a batch, by environment and size, and whether that is too many.

Counting a long queue takes long, and environments ask many times a second. So a process keeps an answer as long as the
count took, many times over: a short queue is counted every time, a long one costs a bounded share of the database.
"""

import threading
import time
from dataclasses import dataclass
from enum import Enum, auto

from django.db.models import Count

from rollouts.models import Run, ScoredGroup
from rollouts.states import GroupState

KEEP = 20
"""An answer is kept for this many times what it cost."""
CHEAP_S = 0.005
"""What costs less is never kept: whoever submits and asks sees their own group."""
MAX_KEPT_S = 5.0


class Pressure(Enum):
    """How full the queue is."""

    LOW = auto()
    HIGH = auto()
    """Half full: whoever submits is asked to slow down."""
    FULL = auto()
    """Nothing more is taken until a batch is formed."""


@dataclass(frozen=True)
class Waiting:
    """Groups of one size from one environment that wait for a batch."""

    environment_id: int
    rollout_count: int
    groups: int


_kept: dict[int, tuple[float, list[Waiting]]] = {}
"""Run id -> (monotonic time until which it holds, answer)."""
_lock = threading.Lock()


def waiting(run: Run) -> list[Waiting]:
    """What waits for a batch of the run. May be as old as stated above."""
    with _lock:
        until, kept = _kept.get(run.pk, (0.0, []))
    started = time.monotonic()
    if started < until:
        return kept
    rows = (
        ScoredGroup.objects.filter(run=run, state=GroupState.READY)
        .values_list("environment_id", "rollout_count")
        .annotate(groups=Count("id"))
        .order_by("environment_id", "rollout_count")
    )
    answer = [Waiting(*row) for row in rows]
    ended = time.monotonic()
    cost_s = ended - started
    with _lock:
        if cost_s < CHEAP_S:
            _kept.pop(run.pk, None)
        else:
            _kept[run.pk] = (ended + min(KEEP * cost_s, MAX_KEPT_S), answer)
    return answer


def pressure(run: Run) -> Pressure:
    """How full the run's queue is, against `batch.max_queued_rollouts`."""
    rollouts = sum(each.groups * each.rollout_count for each in waiting(run))
    limit = run.parsed.batch.max_queued_rollouts
    if rollouts >= limit:
        return Pressure.FULL
    return Pressure.HIGH if 2 * rollouts >= limit else Pressure.LOW
