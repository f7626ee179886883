"""What a run has cost, by what became of it: the seconds that its replicas had GPUs and cores for.

    a second of a replica ── before it served or stepped ─▶ starting
                          ├─ nobody asked it for anything, or it waited for a batch ─▶ idle
                          └─ else, of a trainer ─▶ trained
                                   of a server ─▶ what became of the groups that were played meanwhile

Every second of a replica counts once for each of its GPUs and cores, from the moment its process runs until it has
ended, or until now; jobs that wait for a node cost nothing. How long servers were idle they were asked every few
seconds. Their other time is shared out over groups by the tokens of each; while none is settled, and for those whose
end is open, it is `waiting`. Of a trainer a step counts without its wait for the batch; what it did besides, such as a
step that was lost with it and is done again, is idle. Parts are whole seconds and add up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from django.db import connection
from django.db.models import Count, Q, Sum

from rollouts.models import ReplicaKind, Run, ScoredGroup
from rollouts.sql import load
from rollouts.states import GROUP_WAITING, GroupState


class Became(StrEnum):
    """What became of a second. Those that are states of groups mean the same."""

    TRAINED = "trained"
    EVALUATED = "evaluated"
    WAITING = "waiting"
    STALE = "stale"
    FILTERED = "filtered"
    FAILED = "failed"
    REJECTED = "rejected"
    SURPLUS = "surplus"
    IDLE = "idle"
    STARTING = "starting"


_OPEN = {GroupState.PLAYING, *GROUP_WAITING, GroupState.BATCHED}


@dataclass(frozen=True)
class Seconds:
    """Of GPUs and of cores."""

    gpu_s: int = 0
    core_s: int = 0

    def __add__(self, other: "Seconds") -> "Seconds":
        return Seconds(self.gpu_s + other.gpu_s, self.core_s + other.core_s)


@dataclass(frozen=True)
class Cost:
    """Of a run until now."""

    spent: dict[Became, Seconds]
    """All of them, in the order of `Became`."""
    unmeasured: int
    """Replicas of which nobody noted what they computed on: they count as none."""
    replicas: int
    is_final: bool
    """Whether the run is over and none of them is left."""

    @property
    def total(self) -> Seconds:
        return sum(self.spent.values(), Seconds())


def of_run(run: Run) -> Cost:
    """Two aggregate queries, and one for how many replicas there were."""
    with connection.cursor() as cursor:
        cursor.execute(load("replica_seconds"), {"run_id": run.pk})
        rows = {kind: columns for kind, *columns in cursor.fetchall()}
    played = _played(run) if ReplicaKind.INFERENCE in rows else {}
    spent = dict.fromkeys(Became, Seconds())
    unmeasured = 0
    for kind, (unknown, *seconds) in rows.items():
        unmeasured += unknown
        by_gpu, by_core = _parts(kind, seconds[:4], played), _parts(kind, seconds[4:], played)
        for became in Became:
            spent[became] += Seconds(by_gpu.get(became, 0), by_core.get(became, 0))
    number = run.replicas.aggregate(all=Count("pk"), left=Count("pk", filter=Q(ended_at=None)))
    return Cost(spent, unmeasured, number["all"], is_final=run.is_over and not number["left"])


def _parts(kind: str, seconds: Sequence[int], played: Mapping[Became, int]) -> dict[Became, int]:
    starting, ready, idle, stepping = seconds
    if kind == ReplicaKind.TRAINER:
        return {Became.STARTING: starting, Became.TRAINED: stepping, Became.IDLE: ready - stepping}
    return share_out(ready - idle, played) | {Became.STARTING: starting, Became.IDLE: idle}


def share_out(amount: int, weights: Mapping[Became, int]) -> dict[Became, int]:
    """Split a whole number by weights into whole numbers that add up to it; without weights all of it waits."""
    total = sum(weights.values())
    if not total:
        return {Became.WAITING: amount}
    parts = {became: amount * weight // total for became, weight in weights.items()}
    left = amount - sum(parts.values())
    # To those that rounding down took most from.
    for became in sorted(weights, key=lambda each: -(amount * weights[each] % total))[:left]:
        parts[became] += 1
    return parts


def _played(run: Run) -> dict[Became, int]:
    """The tokens of a run's groups, by what became of them. One query."""
    tokens = ScoredGroup.objects.filter(run=run).order_by().values_list("state").annotate(Sum("token_count"))
    found: dict[Became, int] = {}
    for state, count in tokens:
        became = Became.WAITING if state in _OPEN else Became(state)
        found[became] = found.get(became, 0) + count
    return found
