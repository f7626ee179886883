"""How many groups wait for a batch, by environment and size, and whether that is too many.

Counting a long queue takes long, and environments ask many times a second. So a process keeps what it counted of a long
queue as long as the count took, many times over: a short queue is counted every time, a long one costs a bounded share
of the database.
"""

import time
from dataclasses import dataclass
from enum import Enum, auto

from django.db.models import Count

from rollouts.models import Run, ScoredGroup
from rollouts.states import GroupState

KEEP = 20
"""An answer is kept for this many times what it cost."""
SHORT = 2_000
"""Groups. A queue up to this long takes a millisecond to count: whoever submits and asks sees their own group."""
MAX_KEPT_S = 5.0
PRESSURE_AGE_S = 1.0


class Pressure(Enum):
    """How full the queue is."""

    LOW = auto()
    HIGH = auto()
    """Half full: whoever submits is asked to slow down."""
    FULL = auto()
    """Nothing more is taken until a batch is formed."""


@dataclass(frozen=True)
class QueuedGroups:
    """Groups of one size from one environment that wait for a batch."""

    environment_id: int
    rollout_count: int
    groups: int


@dataclass(frozen=True)
class _Answer:
    taken_at: float
    """Monotonic."""
    cost_s: float
    waiting: list[QueuedGroups]

    def holds(self, now: float, max_age_s: float) -> bool:
        is_short = sum(each.groups for each in self.waiting) <= SHORT
        kept_s = 0.0 if is_short else min(KEEP * self.cost_s, MAX_KEPT_S)
        return now - self.taken_at < max(kept_s, max_age_s)


_answers: dict[int, _Answer] = {}
"""By run id. Replaced whole, so threads need no lock."""


def waiting(run: Run, *, max_age_s: float = 0.0) -> list[QueuedGroups]:
    """What waits for a batch of the run, not older than ``max_age_s`` unless counting is expensive."""
    started = time.monotonic()
    answer = _answers.get(run.pk)
    if answer is None or not answer.holds(started, max_age_s):
        rows = (
            ScoredGroup.objects.filter(run=run, state=GroupState.READY)
            .values_list("environment_id", "rollout_count")
            .annotate(groups=Count("id"))
            .order_by("environment_id", "rollout_count")
        )
        counted = [QueuedGroups(*row) for row in rows]
        ended = time.monotonic()
        answer = _answers[run.pk] = _Answer(ended, ended - started, counted)
    return answer.waiting


def pressure(run: Run) -> Pressure:
    """How full the run's queue is, against `batch.max_queued_rollouts`; as it was within the last second."""
    rollouts = sum(each.groups * each.rollout_count for each in waiting(run, max_age_s=PRESSURE_AGE_S))
    limit = run.parsed.batch.max_queued_rollouts
    if rollouts >= limit:
        return Pressure.FULL
    return Pressure.HIGH if 2 * rollouts >= limit else Pressure.LOW
