"""Estimates from samples: against enumeration, and against what is known of them."""

import itertools
import random
import tracemalloc
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments import estimates

counts = st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))


@given(counts)
def test_pass_at_k_and_pass_hat_k_are_the_shares_of_all_choices(count: tuple[int, int, int]) -> None:
    n, c, k = count
    choices = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert estimates.pass_at_k(n, c, k) == pytest.approx(float(Fraction(sum(map(any, choices)), len(choices))))
    assert estimates.pass_hat_k(n, c, k) == pytest.approx(float(Fraction(sum(map(all, choices)), len(choices))))


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 5, 1), (4, -1, 1), (4, 1, 0), (0, 0, 1)])
def test_what_samples_cannot_say_is_refused(n: int, c: int, k: int) -> None:
    for estimator in (estimates.pass_at_k, estimates.pass_hat_k):
        with pytest.raises(ValueError, match=r"sample|right"):
            estimator(n, c, k)


def test_figures_over_problems_are_means_of_theirs() -> None:
    solved = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.5]]
    assert estimates.mean(solved).value == pytest.approx((0.25 + 1 + 0.25) / 3)
    assert estimates.at_k(solved, 2).value == pytest.approx((0.5 + 1 + 0) / 3)
    assert estimates.hat_k(solved, 2).value == pytest.approx((0 + 1 + 0) / 3)
    assert estimates.at_k(solved, 2, threshold=0.5).value == pytest.approx((0.5 + 1 + 1) / 3)


def test_pairs_tell_more_than_two_intervals() -> None:
    before = [[difficulty] for difficulty in (0.0, 0.2, 0.4, 0.6, 0.8) * 10]
    after = [[score + 0.1] for (score,) in before]
    gained = estimates.difference(before, after)
    assert 0 < gained.low < gained.value < gained.high
    assert gained.value == pytest.approx(0.1)
    assert estimates.mean(after).low < estimates.mean(before).high, "the two intervals alone overlap"
    with pytest.raises(ValueError, match="cannot be paired"):
        estimates.difference(before, after[1:])


def test_an_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    import numpy as np

    rng = np.random.default_rng(7)
    held = 0
    for _ in range(200):
        low_high = estimates.mean([[score] for score in rng.random(60)])
        held += low_high.low <= 0.5 <= low_high.high
    assert 0.88 <= held / 200 <= 0.99
    assert estimates.mean([[0.3], [0.9]]) == estimates.mean([[0.3], [0.9]])


@pytest.mark.parametrize("share", [0.5, 0.02, 0.0005])
def test_an_interval_over_very_many_problems_is_that_of_resamples_of_which_none_is_drawn(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    problems = 200_000
    right = int(problems * share)
    # The sum of a resample of zeros and ones is binomial.
    means = np.random.default_rng(7).binomial(problems, share, size=200_000) / problems
    low, high = np.quantile(means, [0.025, 0.975])
    monkeypatch.delattr(np.random, "default_rng")
    found = estimates.difference([[0.0]] * problems, [[1.0]] * right + [[0.0]] * (problems - right))
    assert found.value == pytest.approx(share)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.05 * (high - low))


def test_an_interval_lies_within_the_values_that_there_are() -> None:
    problems = 40_000
    rare = estimates.mean([[1.0]] + [[0.0]] * (problems - 1))
    assert rare.low == 0.0 < rare.value < rare.high
    same = estimates.mean([[0.1]] * problems)
    assert (same.low, same.high) == pytest.approx((0.1, 0.1), abs=1e-4)


@pytest.mark.parametrize(("problems", "low"), [(1, 0.025), (64, 0.944), (1_000, 0.996)])
def test_problems_that_are_all_solved_leave_room_for_those_that_were_not_asked(problems: int, low: float) -> None:
    """The exact interval of as many successes, by any table."""
    assert estimates.mean([[1.0]] * problems).low == pytest.approx(low, abs=1e-3)
    assert estimates.mean([[1.0]] * problems).high == 1.0
    assert estimates.mean([[0.0]] * problems).high == pytest.approx(1 - low, abs=1e-3)


def test_an_interval_over_nearly_solved_problems_holds_what_it_promises() -> None:
    draws, right = random.Random(3), 0.98
    runs = [[[float(draws.random() < right)] for _ in range(64)] for _ in range(200)]
    held = sum(found.low <= right <= found.high for found in map(estimates.mean, runs))
    assert held >= 180


def test_one_pair_tells_no_difference() -> None:
    found = estimates.difference([[0.5]], [[0.6]])
    assert found.low < 0 < found.value < found.high
    alike = estimates.difference([[1.0]] * 50, [[1.0]] * 50)
    assert -0.08 < alike.low < 0 < alike.high < 0.08


def test_a_game_that_was_always_drawn_may_be_lost_another_time() -> None:
    drawn = estimates.mean([[1.0, -1.0]] * 64)
    assert drawn.low < 0 == drawn.value < drawn.high


def test_scores_that_are_the_same_are_so_however_many_there_are_of_each() -> None:
    found = estimates.mean([[0.7] * 8] * 40 + [[0.7] * 7] * 24)
    assert found.high - found.low > 0.01


def test_values_beyond_0_and_1_stay_within_what_there_was() -> None:
    same = estimates.mean([[2.0]] * 10)
    assert 0 < same.low < same.value == same.high == 2.0


def test_an_interval_over_many_problems_is_that_of_all_resamples_at_once_in_less_memory() -> None:
    import numpy as np

    values = np.random.default_rng(7).random(4_000)
    tracemalloc.start()
    try:
        estimates.mean([[value] for value in values])
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2_000 * len(values) * 8 / 2
    some = values[:999]
    at_once = some[np.random.default_rng(0).integers(0, len(some), size=(2_000, len(some)))].mean(axis=1)
    low, high = np.quantile(at_once, [0.025, 0.975])
    found = estimates.mean([[value] for value in some])
    assert found.low == pytest.approx(low, abs=1e-12)
    assert found.high == pytest.approx(high, abs=1e-12)
