"""Advantages against numbers worked by hand."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.advantages import algorithm_advantages, are_equal, group_advantages
from trainers.run_config import AdvantageMethod, AlgorithmConfig, CorrectionsConfig, DistillLoss, GrpoLoss

CENTRED: tuple[AdvantageMethod, ...] = ("mean_std", "mean", "leave_one_out", "length_weighted", "max_rl")


def test_mean_subtracts_the_group_mean() -> None:
    assert group_advantages([1.0, 0.0, 0.0, 1.0], "mean") == [0.5, -0.5, -0.5, 0.5]


def test_mean_std_divides_by_the_population_deviation() -> None:
    # mean 2.5, squared distances 2.25 + .25 + .25 + 2.25 = 5, variance 1.25
    expected = [-1.5, -0.5, 0.5, 1.5]
    got = group_advantages([1.0, 2.0, 3.0, 4.0], "mean_std", std_epsilon=0.0)
    assert got == pytest.approx([value / math.sqrt(1.25) for value in expected], rel=1e-12)


def test_one_degree_of_freedom_less_is_the_sample_deviation() -> None:
    got = group_advantages([1.0, 2.0, 3.0, 4.0], "mean_std", std_epsilon=0.0, std_ddof=1)
    assert got == pytest.approx([value / math.sqrt(5 / 3) for value in [-1.5, -0.5, 0.5, 1.5]], rel=1e-12)


def test_epsilon_is_added_to_the_deviation() -> None:
    # mean .5, deviation .5: .5 / (.5 + .5) = .5
    assert group_advantages([1.0, 0.0], "mean_std", std_epsilon=0.5) == [0.5, -0.5]


def test_leave_one_out_subtracts_the_mean_of_the_others() -> None:
    # 1 - (0 + 2) / 2, 0 - (1 + 2) / 2, 2 - (1 + 0) / 2
    assert group_advantages([1.0, 0.0, 2.0], "leave_one_out") == pytest.approx([0.0, -1.5, 1.5], abs=1e-12)


def test_length_weighted_subtracts_the_mean_over_tokens() -> None:
    # (1 x 10 + 0 x 30) / 40 = .25
    assert group_advantages([1.0, 0.0], "length_weighted", lengths_G=[10, 30]) == [0.75, -0.25]
    assert group_advantages([1.0, None, 0.0], "length_weighted", lengths_G=[10, 500, 30]) == [0.75, None, -0.25]
    assert group_advantages([1.0, 0.0], "length_weighted", lengths_G=[0, 0]) == [0.5, -0.5]


def test_max_rl_divides_by_the_mean_and_is_zero_unless_it_is_positive() -> None:
    # mean .25: .75 / .25, -.25 / .25
    assert group_advantages([1.0, 0.0, 0.0, 0.0], "max_rl") == [3.0, -1.0, -1.0, -1.0]
    assert group_advantages([1.0, -1.0], "max_rl") == [0.0, 0.0]
    assert group_advantages([1.0, -3.0, None], "max_rl") == [0.0, 0.0, None]


def test_none_takes_the_reward_itself() -> None:
    assert group_advantages([0.5, None, 0.5], "none") == [0.5, None, 0.5]


@pytest.mark.parametrize("method", CENTRED)
@given(reward=st.floats(-1e6, 1e6), size=st.integers(2, 16))
def test_equal_rewards_give_exactly_zero(method: AdvantageMethod, reward: float, size: int) -> None:
    lengths = list(range(1, size + 1))
    assert group_advantages([reward] * size, method, std_epsilon=0.0, lengths_G=lengths) == [0.0] * size


@pytest.mark.parametrize("method", CENTRED)
def test_failed_rollouts_are_no_part_of_the_statistics(method: AdvantageMethod) -> None:
    whole = group_advantages([1.0, 0.0], method, lengths_G=[3, 5])
    assert group_advantages([1.0, None, 0.0], method, lengths_G=[3, 4, 5]) == [whole[0], None, whole[1]]
    assert group_advantages([None, None], method, lengths_G=[1, 1]) == [None, None]


@pytest.mark.parametrize("method", CENTRED)
def test_a_rollout_alone_has_nothing_to_be_compared_with(method: AdvantageMethod) -> None:
    nothing = None if method == "leave_one_out" else 0.0
    assert group_advantages([None, 0.3], method, lengths_G=[1, 1]) == [None, nothing]


@pytest.mark.parametrize("method", CENTRED)
@given(
    # Rounded, since half of the smallest float is zero: there `max_rl` has a mean only in exact arithmetic.
    rewards=st.lists(st.floats(-100, 100).map(lambda reward: round(reward, 6)), min_size=2, max_size=16),
    lengths=st.lists(st.integers(1, 1000), min_size=16, max_size=16),
)
def test_every_formula_holds_in_exact_arithmetic(
    method: AdvantageMethod, rewards: list[float], lengths: list[int]
) -> None:
    exact, size = [Fraction(reward) for reward in rewards], len(rewards)
    lengths = lengths[:size]
    mean = sum(exact) / size
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in exact) / size)
    tokens = sum(length * reward for length, reward in zip(lengths, exact, strict=True)) / sum(lengths)
    expected = {
        "mean_std": [float(reward - mean) / (deviation + 1e-6) for reward in exact],
        "mean": [float(reward - mean) for reward in exact],
        "leave_one_out": [float(reward - (sum(exact) - reward) / (size - 1)) for reward in exact],
        "length_weighted": [float(reward - tokens) for reward in exact],
        "max_rl": [float((reward - mean) / mean) if mean > 0 else 0.0 for reward in exact],
    }[method]
    got = group_advantages(rewards, method, lengths_G=lengths)
    scale = max(1.0, *map(abs, expected))
    assert got == pytest.approx(expected, rel=1e-6, abs=1e-6 * scale)


@pytest.mark.parametrize("method", CENTRED)
@given(st.lists(st.floats(-100, 100), min_size=2, max_size=16))
def test_advantages_keep_the_order_of_rewards(method: AdvantageMethod, rewards: list[float]) -> None:
    got = group_advantages(rewards, method, lengths_G=[1] * len(rewards))
    advantages = [value for value in got if value is not None]
    ordered = [advantage for _, advantage in sorted(zip(rewards, advantages, strict=True))]
    assert ordered == sorted(advantages)


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_not_finite_is_refused(reward: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        group_advantages([0.0, reward])


def test_the_config_says_how_and_the_loss_says_it_when_the_config_does_not() -> None:
    rewards, lengths, is_cut = [1.0, 0.0], [10, 30], [False, True]
    assert algorithm_advantages(AlgorithmConfig(advantage="mean"), rewards, lengths, is_cut) == [0.5, -0.5]
    assert algorithm_advantages(AlgorithmConfig(advantage="length_weighted"), rewards, lengths, is_cut) == [0.75, -0.25]
    assert algorithm_advantages(AlgorithmConfig(loss=DistillLoss()), rewards, lengths, is_cut) == [1.0, 0.0]
    with_deviation = algorithm_advantages(AlgorithmConfig(loss=GrpoLoss(), std_epsilon=0.5), rewards, lengths, is_cut)
    assert with_deviation == [0.5, -0.5]


def test_an_overlong_rollout_is_not_trained_but_its_reward_counts() -> None:
    masking = AlgorithmConfig(advantage="mean", corrections=CorrectionsConfig(mask_overlong=True))
    assert algorithm_advantages(masking, [1.0, 0.0, None], [1, 1, 1], [False, True, False]) == [0.5, None, None]


def test_an_advantage_that_is_set_to_zero_is_zero_and_its_reward_counts() -> None:
    algorithm, masking = (
        AlgorithmConfig(advantage="mean", corrections=CorrectionsConfig(mask_overlong=each)) for each in (False, True)
    )
    rewards, lengths, is_cut = [1.0, 0.0, 0.5, None], [1] * 4, [False, True, False, False]
    assert algorithm_advantages(algorithm, rewards, lengths, is_cut, zeroed={0, 1, 3}) == [0.0, 0.0, 0.0, None]
    assert algorithm_advantages(algorithm, rewards, lengths, is_cut, zeroed={1}) == [0.5, 0.0, 0.0, None]
    assert algorithm_advantages(masking, rewards, lengths, is_cut, zeroed={1}) == [0.5, None, 0.0, None]
    seats = ["a", "b", "a", "b"]
    assert algorithm_advantages(algorithm, rewards, lengths, is_cut, seats, zeroed={2}) == [0.25, 0.0, 0.0, None]


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.none() | st.floats(-9, 9)), min_size=1, max_size=24))
def test_rollouts_of_a_seat_are_compared_with_each_other_as_if_no_other_had_played(
    played: list[tuple[str, float | None]],
) -> None:
    seats, rewards = [seat for seat, _ in played], [reward for _, reward in played]
    lengths, is_cut = list(range(1, len(played) + 1)), [False] * len(played)
    for method in CENTRED:
        algorithm = AlgorithmConfig(advantage=method)
        got = algorithm_advantages(algorithm, rewards, lengths, is_cut, seats)
        for seat in seats:
            own = [at for at, other in enumerate(seats) if other == seat]
            alone = algorithm_advantages(
                algorithm, [rewards[at] for at in own], [lengths[at] for at in own], [False] * len(own)
            )
            assert [got[at] for at in own] == alone
            if are_equal(rewards, seats):
                assert not any(alone)
