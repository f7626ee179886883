"""What forming a batch reads of its groups, and what it says of them and of everything that was generated for it."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rollouts.formats.atropos.extras import zeroed
from rollouts.models import ROUNDING, Run
from rollouts.services import metrics
from rollouts.sql import binary_cursor, load
from trainers.advantages import are_equal

MOST_GENERATED = 4_096
"""Groups scored since the last batch of which the means are taken; of more the newest."""
_GENERATED = (
    "reward/generated_mean",
    "problems/no_signal_share",
    "problems/all_solved_share",
    "problems/none_solved_share",
    "problems/filtered_share",
)


class GroupFacts(NamedTuple):
    """What forming a batch needs to know of a group; columns of batch_facts.sql. Lists are in rollout order."""

    group_id: int
    environment: str
    min_policy_version: int | None
    rewards: list[float | None]
    lengths: list[int]
    is_cut: list[bool]
    seats: list[str]
    """Empty names where the environment has none."""
    extras: bytes | None
    """Of a group of an Atropos environment."""

    @property
    def zeroed(self) -> frozenset[int]:
        """Positions of the rollouts whose environment wants an advantage of 0."""
        return zeroed(self.extras)

    @property
    def scored(self) -> list[float]:
        return [reward for reward in self.rewards if reward is not None]


def facts_of(group_ids: Sequence[int]) -> list[GroupFacts]:
    with binary_cursor() as cursor:
        cursor.execute(load("batch_facts"), {"group_ids": list(group_ids)})
        facts = {row[0]: GroupFacts(*row) for row in cursor.fetchall()}
    return [facts[group_id] for group_id in group_ids]


def statistics_of(run: Run, step: int, groups: Sequence[GroupFacts], *, is_replay: bool) -> dict[str, float]:
    """The metric points of a step, known when its batch is formed. To be called before the batch's row is written.

    Whoever submits groups names environments and seats: where there are more than metrics may have keys, the means of
    seats are left out, then those of environments.
    """
    every = [reward for group in groups for reward in group.scored]
    # Outside, a version may be in use before the step that trains on it is even formed: that is no lag.
    lags = [max(0, step - (group.min_policy_version or 0)) for group in groups]
    values = {
        "reward/mean": statistics.fmean(every),
        "reward/std": statistics.pstdev(every),
        "reward/zero_advantage_share": statistics.fmean(
            float(are_equal(group.rewards, group.seats)) for group in groups
        ),
        "batch/groups": len(groups),
        "batch/failed_rollouts": sum(len(group.rewards) for group in groups) - len(every),
    }
    if not is_replay:  # whose groups count their versions by the run they were made in
        values |= {"lag/max": max(lags), "lag/mean": statistics.fmean(lags)} | _generated(run)
    by_environment: defaultdict[str, list[float]] = defaultdict(list)
    by_seat: defaultdict[str, list[float]] = defaultdict(list)
    for group in groups:
        for seat, reward in zip(group.seats, group.rewards, strict=True):
            if reward is None:
                continue
            by_environment[group.environment].append(reward)
            if seat:
                by_seat[f"{group.environment}/{seat}"].append(reward)
    return metrics.fitting(
        {key: float(value) for key, value in values.items()}, _reward_means(by_environment), _reward_means(by_seat)
    )


def _reward_means(rewards: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {f"reward/{name}/mean": statistics.fmean(own) for name, own in rewards.items()}


def _generated(run: Run) -> dict[str, float]:
    """Of all that was generated since the last batch, beside what is trained. Empty if there was nothing."""
    with binary_cursor() as cursor:
        bounds = {"groups": MOST_GENERATED, "rounding": ROUNDING}
        cursor.execute(load("generated"), {"run_id": run.pk, **bounds})
        row = cursor.fetchone()
    assert row is not None, "a query of sums has one row"
    count, *values = row
    return dict(zip(_GENERATED, values, strict=True)) if count else {}
