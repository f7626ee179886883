"""Reads of the difficulty pools of a run: how many problems of each environment are where."""

from dataclasses import dataclass

from django.db.models import Count

from rollouts.models import KnownProblem, Run
from rollouts.pools import Pool


@dataclass(frozen=True)
class PoolSizes:
    """The problems of one environment."""

    by_pool: dict[Pool, int]
    """Of those that were handed out; new ones are being played, or every rollout of them failed."""
    unseen: int | None
    """Never handed out; None: nobody counted the problems."""


def of_run(run: Run) -> dict[str, PoolSizes]:
    """By environment, of those that have pools. Two queries; none for a run without pools."""
    names = [ref.run_name for ref in run.parsed.environments if ref.pools is not None]
    if not names:
        return {}
    rows = KnownProblem.objects.filter(environment__run=run).values_list("environment", "pool")
    counts = {(environment, Pool(pool)): count for environment, pool, count in rows.annotate(Count("pk")).order_by()}
    return {
        row.name: PoolSizes(
            {pool: counts.get((row.pk, pool), 0) for pool in Pool},
            None if row.problems is None else max(0, row.problems - row.unseen),
        )
        for row in run.environments.filter(name__in=names).order_by("id")
    }
