"""Advantages against numbers worked by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.advantages import AdvantageMethod, group_advantages

METHODS: tuple[AdvantageMethod, ...] = ("mean_std", "mean")


def test_mean_subtracts_the_group_mean() -> None:
    assert group_advantages([1.0, 0.0, 0.0, 1.0], "mean") == [0.5, -0.5, -0.5, 0.5]


def test_mean_std_divides_by_the_population_deviation() -> None:
    # mean 2.5, squared distances 2.25 + .25 + .25 + 2.25 = 5, variance 1.25
    expected = [-1.5, -0.5, 0.5, 1.5]
    got = group_advantages([1.0, 2.0, 3.0, 4.0], "mean_std", std_epsilon=0.0)
    assert got == pytest.approx([value / math.sqrt(1.25) for value in expected], rel=1e-12)


def test_epsilon_is_added_to_the_deviation() -> None:
    # mean .5, deviation .5: .5 / (.5 + .5) = .5
    assert group_advantages([1.0, 0.0], "mean_std", std_epsilon=0.5) == [0.5, -0.5]


@pytest.mark.parametrize("method", METHODS)
@given(reward=st.floats(-1e6, 1e6), size=st.integers(1, 16))
def test_equal_rewards_give_exactly_zero(method: AdvantageMethod, reward: float, size: int) -> None:
    assert group_advantages([reward] * size, method, std_epsilon=0.0) == [0.0] * size


@pytest.mark.parametrize("method", METHODS)
def test_failed_rollouts_are_no_part_of_the_statistics(method: AdvantageMethod) -> None:
    whole = group_advantages([1.0, 0.0], method)
    assert group_advantages([1.0, None, 0.0], method) == [whole[0], None, whole[1]]
    assert group_advantages([None, 0.3], method) == [None, 0.0]
    assert group_advantages([None, None], method) == [None, None]


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=16))
def test_advantages_sum_to_zero_and_keep_the_order_of_rewards(rewards: list[float]) -> None:
    advantages = [value for value in group_advantages(rewards, "mean") if value is not None]
    assert math.fsum(advantages) == pytest.approx(0.0, abs=1e-9)
    for (reward, advantage), (other, other_advantage) in zip(
        zip(rewards, advantages, strict=True), list(zip(rewards, advantages, strict=True))[1:], strict=False
    ):
        assert (reward <= other) == (advantage <= other_advantage) or reward == pytest.approx(other)


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_not_finite_is_refused(reward: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        group_advantages([0.0, reward])
