"""Several rewards are one sum."""

import asyncio

from environments.rewards.registry import RewardPart, Rewards
from tests.environments.rewards.replying import problem, rollout


def test_a_reply_that_is_perfect_by_weights_of_one_is_worth_one_to_the_last_bit() -> None:
    weights = {"answer": 0.7, "whole": 0.2, "brief": 0.1}
    assert sum(weights.values()) < 1.0, "one after the other they are not"
    rewards = Rewards([RewardPart(name="exact", label=label, weight=weight) for label, weight in weights.items()])
    played = rollout("42")
    assert asyncio.run(rewards.score(problem(answer="42"), played)) == 1.0
    assert played.metrics == {f"reward/{label}": 1.0 for label in weights}
