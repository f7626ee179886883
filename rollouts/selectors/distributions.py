"""Reads of how the rewards of an environment are spread."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import connection

from rollouts.models import RunEnvironment
from rollouts.selectors.environments import NEWEST_GROUPS
from rollouts.sql import load

BINS = 20


@dataclass(frozen=True)
class RewardDistribution:
    """Rollouts per bin of equal width between two rewards, of one version of an environment."""

    version: str
    """Empty: nobody said."""
    low: float
    high: float
    counts: tuple[int, ...]

    @property
    def rollouts(self) -> int:
        return sum(self.counts)


def of_environments(rows: Sequence[RunEnvironment]) -> list[RewardDistribution]:
    """By version, of the newest groups of these runs, of these environments of theirs. One query."""
    if not rows:
        return []
    wanted = {"run_ids": sorted({row.run_id for row in rows}), "environment_ids": [row.pk for row in rows]}
    with connection.cursor() as cursor:
        cursor.execute(load("reward_distribution"), {**wanted, "groups": NEWEST_GROUPS, "bins": BINS})
        counted = cursor.fetchall()
    found: dict[str, list[int]] = {}
    for _, _, version, position, rollouts in counted:
        found.setdefault(version, [0] * BINS)[position] = rollouts
    bounds = {"low": counted[0][0], "high": counted[0][1]} if counted else {}
    return [RewardDistribution(version=version, counts=tuple(each), **bounds) for version, each in found.items()]
