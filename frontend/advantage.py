"""Why each rollout of a group got its advantage: the arithmetic of `trainers/advantages.py` in words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from frontend import numbers
from rollouts.models import Run
from trainers.advantages import group_advantages


@dataclass(frozen=True)
class MemberWhy:
    """One rollout: its advantage, and the line that leads to it."""

    advantage: float | None
    line: str


@dataclass(frozen=True)
class Explanation:
    """The group's baseline in a sentence, and a line per member."""

    sentence: str
    members: list[MemberWhy]


def explain(run: Run, rewards: Sequence[float | None], stored: Sequence[float | None] | None) -> Explanation:
    """Explain the advantages of a group's batch, or say what they would be while the group is in none."""
    known = [reward for reward in rewards if reward is not None]
    if not known:
        return Explanation("No member has a reward, so there is no advantage.", [MemberWhy(None, "")] * len(rewards))
    algorithm = run.parsed.algorithm
    advantages = stored or group_advantages(rewards, algorithm.advantage, algorithm.std_epsilon)
    if min(known) == max(known):
        sentence = (
            f"All rewards are {numbers.number(known[0])}: every advantage is 0, so the group carries no gradient."
        )
        return Explanation(sentence, [MemberWhy(value, "") for value in advantages])
    mean = math.fsum(known) / len(known)
    divisor = None
    sentence = f"Advantage = reward − {numbers.number(mean)}, the group's mean"
    if algorithm.advantage == "mean_std":
        divisor = math.sqrt(math.fsum((reward - mean) ** 2 for reward in known) / len(known))
        sentence += f", divided by its deviation of {numbers.number(divisor)}"
    return Explanation(
        f"{sentence}.",
        [
            MemberWhy(advantage, _line(reward, advantage, mean, divisor))
            for reward, advantage in zip(rewards, advantages, strict=True)
        ],
    )


def _line(reward: float | None, advantage: float | None, mean: float, divisor: float | None) -> str:
    if reward is None:
        return "failed: no reward, and not trained on"
    line = f"{numbers.number(reward)} − {numbers.number(mean)} = {numbers.signed(reward - mean)}"
    return line if divisor is None else f"{line}, ÷ {numbers.number(divisor)} = {numbers.signed(advantage)}"
