"""What samples say of a policy: mean, pass@k and pass^k over problems, each with an interval, and differences of pairs.

All take `solved`: for each of P problems, the scores of its samples. Problems may have different numbers of samples.
Intervals are percentile bootstraps over problems, since samples of one problem are not independent of each other
(Efron and Tibshirani 1993, chapter 13); they are the same for the same input. Means of resamples of very many problems
are as good as normal: there the interval is of that distribution, within the values that there are. Where all problems
gave the same, resamples differ in nothing: there it reaches as far as a share of 1 - .025 ** (1 / P) of others could
move the mean, as the exact interval of Clopper and Pearson (1934) does for P successes out of P.
"""

from collections.abc import Callable, Sequence
from math import comb, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Samples = Sequence[float]
_RESAMPLES = 2_000
_AT_ONCE = 1_000_000
"""Numbers that are drawn at a time; they are the same ones however many that is."""
_LEVEL = 0.95
_ALIKE = 1e-9
"""Between means of the same scores, of which there may be more or fewer."""
_MOST_RESAMPLED = 20_000
"""Problems. Resamples of 200,000 take minutes, and differ from the normal distribution by less than from each other."""


class Estimate(NamedTuple):
    """A value and the interval that holds it 95 times in a hundred."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of k samples is right, when c of n were: 1 - C(n-c, k) / C(n, k).

    Unbiased (Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1). Raises ValueError for
    k > n, of which n samples say nothing.
    """
    _check(n, c, k)
    return 1.0 - comb(n - c, k) / comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Chance that all of k samples are right, when c of n were: C(c, k) / C(n, k).

    Unbiased (Yao et al. 2024, "tau-bench", section 3.3). Raises ValueError as `pass_at_k`.
    """
    _check(n, c, k)
    return comb(c, k) / comb(n, k)


def mean(solved: Sequence[Samples]) -> Estimate:
    """Mean over problems of the mean of their samples: avg@n."""
    goes_below_0 = any(score < 0 for samples in solved for score in samples)
    return _over_problems([float(np.mean(samples)) for samples in solved], least=-1.0 if goes_below_0 else 0.0)


def at_k(solved: Sequence[Samples], k: int, *, threshold: float = 1.0) -> Estimate:
    """pass@k; a sample is right from `threshold` on."""
    return _estimated(solved, k, threshold, pass_at_k)


def hat_k(solved: Sequence[Samples], k: int, *, threshold: float = 1.0) -> Estimate:
    """pass^k; a sample is right from `threshold` on."""
    return _estimated(solved, k, threshold, pass_hat_k)


def difference(first: Sequence[Samples], second: Sequence[Samples]) -> Estimate:
    """How much higher the mean of `second` is, pair by pair: the same problem at the same place of both.

    Raises ValueError for lists of different length.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} problems cannot be paired with {len(second)}.")
    pairs = zip(first, second, strict=True)
    return _over_problems([float(np.mean(after) - np.mean(before)) for before, after in pairs], least=-1.0)


def _check(n: int, c: int, k: int) -> None:
    if not 0 <= c <= n:
        raise ValueError(f"{c} of {n} samples cannot be right.")
    if not 1 <= k <= n:
        raise ValueError(f"k is {k}, and there are {n} samples: sample at least k.")


def _estimated(
    solved: Sequence[Samples], k: int, threshold: float, estimator: Callable[[int, int, int], float]
) -> Estimate:
    return _over_problems(
        [estimator(len(samples), sum(score >= threshold for score in samples), k) for samples in solved]
    )


def _over_problems(values: Sequence[float], least: float = 0.0, most: float = 1.0) -> Estimate:
    """`least`, `most`: between which a problem's value is, unless these are not."""
    if not values:
        raise ValueError("There is no problem to estimate from.")
    per_problem = np.asarray(values, dtype=np.float64)
    tail = (1.0 - _LEVEL) / 2
    if np.ptp(per_problem) < _ALIKE:
        value, unseen = float(per_problem[0]), 1.0 - tail ** (1.0 / len(values))
        least, most = min(least, value), max(most, value)
        return Estimate(value, value - unseen * (value - least), value + unseen * (most - value))
    interval = _normal if len(values) > _MOST_RESAMPLED else _resampled
    low, high = interval(per_problem, [tail, 1.0 - tail])
    return Estimate(float(per_problem.mean()), low, high)


def _resampled(per_problem: npt.NDArray[np.float64], ends: Sequence[float]) -> tuple[float, ...]:
    rng = np.random.default_rng(0)
    rows = max(1, _AT_ONCE // len(per_problem))
    means = np.empty(_RESAMPLES)
    for block in np.split(means, range(rows, _RESAMPLES, rows)):
        chosen = rng.integers(0, len(per_problem), size=(len(block), len(per_problem)))  # [rows, P]
        block[:] = per_problem[chosen].mean(axis=1)
    return tuple(np.quantile(means, ends).tolist())


def _normal(per_problem: npt.NDArray[np.float64], ends: Sequence[float]) -> tuple[float, ...]:
    spread = per_problem.std() / sqrt(len(per_problem))
    reached = [per_problem.mean() + spread * NormalDist().inv_cdf(end) for end in ends]
    return tuple(np.clip(reached, per_problem.min(), per_problem.max()).tolist())
