"""Turn the rewards of one group into advantages: one number per rollout, the same for all of its tokens.

    mean_std         (R_i - mean R) / (std R + epsilon)                   arXiv:2402.03300
    mean             R_i - mean R                                         arXiv:2503.20783
    leave_one_out    R_i - mean of the others = (R_i - mean R) G / (G-1)  arXiv:2402.14740
    length_weighted  R_i - b, b = sum of L R / sum of L                   arXiv:2505.23585; L: trained tokens
    max_rl           (R_i - mean R) / mean R, 0 if mean R <= 0            arXiv:2602.02710
    none             R_i

A failed rollout has no reward: it is no part of the statistics, and is not trained on. Rollouts of matches are compared
with those of their own seat alone: what the other seats won says nothing of them. Shapes: G rollouts of a group.
"""

import logging
import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from trainers.run_config import AdvantageMethod, AlgorithmConfig

_log = logging.getLogger(__name__)


def group_advantages(
    rewards_G: Sequence[float | None],
    method: AdvantageMethod = "mean_std",
    std_epsilon: float = 1e-6,
    std_ddof: int = 0,
    lengths_G: Sequence[int] | None = None,
) -> list[float | None]:
    """Return the advantages of one group, aligned with its rewards.

    A failed rollout (reward None) gets None: it must not be trained on, not even with a zero, because its tokens would
    count in the denominator of the loss. So does a rollout that `leave_one_out` leaves without others. `lengths_G` are
    trained tokens, needed by `length_weighted`. Raises ValueError on a non-finite reward.
    """
    scored = [reward for reward in rewards_G if reward is not None]
    if not all(math.isfinite(reward) for reward in scored):
        raise ValueError(f"rewards must be finite, got {scored}")
    if method == "none" or not scored:
        return list(rewards_G)
    if method == "leave_one_out" and len(scored) == 1:
        _log.warning("one scored rollout in a group of %d has no others to compare with: dropped", len(rewards_G))
        return [None] * len(rewards_G)
    if min(scored) == max(scored):
        # Rounding makes the mean of equal rewards differ from them; dividing by a deviation of that size would turn
        # the difference into advantages near 1.
        return [None if reward is None else 0.0 for reward in rewards_G]
    base, divisor = comparison(rewards_G, method, std_ddof, lengths_G)
    if divisor <= 0:  # max_rl, which means nothing then
        return [None if reward is None else 0.0 for reward in rewards_G]
    divisor += std_epsilon if method == "mean_std" else 0.0
    return [None if reward is None else (reward - base) / divisor for reward in rewards_G]


class Comparison(NamedTuple):
    """What the rewards of a group are compared with: advantage = (reward - base) / divisor, but for an epsilon."""

    base: float
    divisor: float


def comparison(
    rewards_G: Sequence[float | None],
    method: AdvantageMethod,
    std_ddof: int = 0,
    lengths_G: Sequence[int] | None = None,
) -> Comparison:
    """The two numbers of a group with a scored rollout, or with two for a deviation or for `leave_one_out`."""
    scored = [reward for reward in rewards_G if reward is not None]
    mean = math.fsum(scored) / len(scored)
    match method:
        case "none":
            return Comparison(0.0, 1.0)
        case "mean":
            return Comparison(mean, 1.0)
        case "mean_std":
            return Comparison(mean, deviation(scored, std_ddof))
        case "leave_one_out":
            return Comparison(mean, (len(scored) - 1) / len(scored))
        case "length_weighted":
            return Comparison(_length_weighted_mean(rewards_G, lengths_G), 1.0)
        case "max_rl":
            return Comparison(mean, mean)


def of_seats(seats_G: Sequence[str]) -> list[list[int]]:
    """Positions of the rollouts of each seat: they are what is compared."""
    return [[at for at, other in enumerate(seats_G) if other == seat] for seat in dict.fromkeys(seats_G)]


def are_equal(rewards_G: Sequence[float | None], seats_G: Sequence[str]) -> bool:
    """Whether nothing that is compared differs: all rewards of each seat are equal."""
    compared = ([reward for at in members if (reward := rewards_G[at]) is not None] for members in of_seats(seats_G))
    return all(min(rewards) == max(rewards) for rewards in compared if rewards)


def algorithm_advantages(
    algorithm: AlgorithmConfig,
    rewards_G: Sequence[float | None],
    lengths_G: Sequence[int],
    is_cut_G: Sequence[bool],
    seats_G: Sequence[str] | None = None,
    zeroed: Collection[int] = (),
) -> list[float | None]:
    """The advantages of one group as a run's config wants them, among the rollouts of each seat.

    `is_cut_G`: the rollout ended at a token limit. With `corrections.mask_overlong` such a rollout gets None, so that
    neither its loss nor its tokens count, but its reward stays in the statistics. `zeroed`: positions of rollouts whose
    environment wants 0, which count in both; one that is not trained on stays None.
    """
    advantages_G: list[float | None] = [None] * len(rewards_G)
    for members in of_seats(seats_G or [""] * len(rewards_G)):
        rewards, lengths = [rewards_G[at] for at in members], [lengths_G[at] for at in members]
        method, epsilon, ddof = algorithm.advantage_method, algorithm.std_epsilon, algorithm.std_ddof
        for at, advantage in zip(members, group_advantages(rewards, method, epsilon, ddof, lengths), strict=True):
            advantages_G[at] = 0.0 if at in zeroed and advantage is not None else advantage
    if not algorithm.corrections.mask_overlong:
        return advantages_G
    return [None if is_cut else advantage for advantage, is_cut in zip(advantages_G, is_cut_G, strict=True)]


def _length_weighted_mean(rewards_G: Sequence[float | None], lengths_G: Sequence[int] | None) -> float:
    """Mean of the rewards, each as often as its rollout has trained tokens; the plain mean when none has any."""
    if lengths_G is None:
        raise ValueError("length_weighted needs the trained tokens of the rollouts")
    pairs = [(reward, length) for reward, length in zip(rewards_G, lengths_G, strict=True) if reward is not None]
    if not any(length for _, length in pairs):
        pairs = [(reward, 1) for reward, _ in pairs]
    return math.fsum(reward * length for reward, length in pairs) / sum(length for _, length in pairs)


def deviation(rewards: Sequence[float], ddof: int) -> float:
    """Standard deviation of at least `ddof` + 1 rewards."""
    mean = math.fsum(rewards) / len(rewards)
    return math.hypot(*(reward - mean for reward in rewards)) / math.sqrt(len(rewards) - ddof)
