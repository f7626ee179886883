"""Weights that change as a run goes on: what share of the problems an environment has at which step."""

from bisect import bisect_right
from collections.abc import Sequence

from pydantic import Field

from trainers.run_config.section import Section


class WeightPoint(Section):
    """The weight of an environment at a step. Between two points it moves in a straight line."""

    step: int = Field(ge=0)
    """Optimizer step, counted from 0; higher than that of the point before."""
    weight: float = Field(gt=0)
    """Share of the rollouts relative to the other environments, at that step."""


def weight_at(points: Sequence[WeightPoint], step: int) -> float:
    """The weight at a step by points in the order of their steps, of which there is at least one: before the first
    point the first one's, after the last the last one's."""
    after = bisect_right(points, step, key=lambda point: point.step)
    if after in (0, len(points)):
        return points[max(0, after - 1)].weight
    left, right = points[after - 1], points[after]
    return left.weight + (right.weight - left.weight) * (step - left.step) / (right.step - left.step)
