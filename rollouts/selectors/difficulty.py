"""Reads of how hard the problems of an environment are for the policy, as it learns: solve rates over policy versions.

A scored group is one problem on one version, so its own two counts (scored, solved) are what everything here adds up.
"""

from dataclasses import dataclass

from django.db import connection

from rollouts.models import RunEnvironment
from rollouts.sql import load

NEWEST_GROUPS = 20_000
"""Of a run, of all its environments together: what the figures rest on."""
RATES = 4
"""Bands of solve rates between none and all."""


@dataclass(frozen=True)
class DifficultyColumn:
    """The groups of a span of policy versions."""

    first_version: int
    last_version: int
    groups: int
    by_rate: tuple[int, ...]
    """How many groups nobody solved, `RATES` bands between, and how many everybody solved."""
    solve_rate: float
    """Of all their rollouts that have a reward."""
    reward_mean: float

    @property
    def none_solved_share(self) -> float:
        return self.by_rate[0] / self.groups

    @property
    def all_solved_share(self) -> float:
        return self.by_rate[-1] / self.groups


@dataclass(frozen=True)
class SolveRate:
    """How often one problem was solved on one policy version."""

    problem_key: str
    version: int
    problem_index: int | None
    """None where its groups were submitted."""
    scored: int
    """Rollouts that have a reward."""
    solved: int
    reward_mean: float

    @property
    def rate(self) -> float:
        return self.solved / self.scored


def difficulty_map(environment: RunEnvironment, *, columns: int = 40) -> list[DifficultyColumn]:
    """At most ``columns`` + 1 spans of versions, oldest first; empty before the first group was scored. One query."""
    with connection.cursor() as cursor:
        cursor.execute(
            load("difficulty_map"), {**_of(environment), "columns": columns, "rates": RATES, "groups": NEWEST_GROUPS}
        )
        return [_column(*row) for row in cursor.fetchall()]


def solve_rates(environment: RunEnvironment, *, problems: int = 50, problem_key: str = "") -> list[SolveRate]:
    """By problem and version, both ascending: of the ``problems`` played most often, or of the one named. One query."""
    with connection.cursor() as cursor:
        cursor.execute(
            load("solve_rates"),
            {**_of(environment), "problems": problems, "problem_key": problem_key, "groups": NEWEST_GROUPS},
        )
        return [SolveRate(key, version, *rest) for key, version, *rest in cursor.fetchall()]


def _of(environment: RunEnvironment) -> dict[str, int]:
    return {"run_id": environment.run_id, "environment_id": environment.pk}


def _column(
    first: int, last: int, rates: list[int], counts: list[int], groups: int, solve_rate: float, reward_mean: float
) -> DifficultyColumn:
    found = dict(zip(rates, counts, strict=True))
    by_rate = tuple(found.get(rate, 0) for rate in range(RATES + 2))
    return DifficultyColumn(first, last, groups, by_rate, float(solve_rate), reward_mean)
