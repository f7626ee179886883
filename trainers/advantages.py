"""Turn the rewards of one group into advantages: one number per rollout, the same for all of its tokens.

mean_std: (R_i - mean R) / (std R + epsilon), population deviation (arXiv:2402.03300)
mean:     R_i - mean R                                             (arXiv:2503.20783)
"""

import math
from collections.abc import Sequence
from typing import Literal

AdvantageMethod = Literal["mean_std", "mean"]


def group_advantages(
    rewards_G: Sequence[float | None], method: AdvantageMethod = "mean_std", std_epsilon: float = 1e-6
) -> list[float | None]:
    """Return the advantages of one group, aligned with its rewards.

    A failed rollout (reward None) is no part of the statistics and gets None: it must not be trained on, not even with
    a zero, because its tokens would count in the denominator of the loss. Raises ValueError on a non-finite reward.
    """
    scored = [reward for reward in rewards_G if reward is not None]
    if not all(math.isfinite(reward) for reward in scored):
        raise ValueError(f"rewards must be finite, got {scored}")
    if not scored:
        return [None] * len(rewards_G)
    if min(scored) == max(scored):
        # Rounding makes the mean of equal rewards differ from them; dividing by a deviation of that size would turn
        # the difference into advantages near 1.
        return [None if reward is None else 0.0 for reward in rewards_G]
    mean = math.fsum(scored) / len(scored)
    scale = 1.0
    if method == "mean_std":
        scale = math.sqrt(math.fsum((reward - mean) ** 2 for reward in scored) / len(scored)) + std_epsilon
    return [None if reward is None else (reward - mean) / scale for reward in rewards_G]
