"""Why each rollout of a group got its advantage: the arithmetic of `trainers/advantages.py` in words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from environments.types import StopReason
from frontend import numbers
from rollouts.models import Rollout, Run
from trainers.advantages import algorithm_advantages, deviation, length_weighted_mean
from trainers.run_config import AdvantageMethod


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


def explain(run: Run, rollouts: Sequence[Rollout], stored: Sequence[float | None] | None) -> Explanation:
    """Explain the advantages of a group's batch, or say what they would be while the group is in none."""
    rewards = [rollout.reward for rollout in rollouts]
    known = [reward for reward in rewards if reward is not None]
    if not known:
        return Explanation("No member has a reward, so there is no advantage.", [MemberWhy(None, "")] * len(rewards))
    algorithm = run.parsed.algorithm
    lengths = [rollout.trained_token_count for rollout in rollouts]
    is_cut = [rollout.stop_reason == StopReason.LENGTH for rollout in rollouts]
    advantages = stored or algorithm_advantages(algorithm, rewards, lengths, is_cut)
    method = algorithm.advantage_method
    if min(known) == max(known) and method != "none":
        sentence = (
            f"All rewards are {numbers.number(known[0])}: every advantage is 0, so the group carries no gradient."
        )
        return Explanation(sentence, [MemberWhy(value, "") for value in advantages])
    sentence, terms = _arithmetic(method, algorithm.std_ddof, rewards, lengths)
    return Explanation(
        sentence if algorithm.loss.uses_advantages else f"The loss {algorithm.loss.type} does not look at advantages.",
        [
            MemberWhy(advantage, _line(reward, advantage, *own))
            for reward, advantage, own in zip(rewards, advantages, terms, strict=True)
        ],
    )


def _arithmetic(
    method: AdvantageMethod, ddof: int, rewards: Sequence[float | None], lengths: Sequence[int]
) -> tuple[str, list[tuple[float | None, float | None]]]:
    """The rule as a sentence; for every member what is taken off its reward, and what the rest is divided by."""
    known = [reward for reward in rewards if reward is not None]
    total = math.fsum(known)
    mean = total / len(known)
    base, divisor = mean, None
    sentence = f"Advantage = reward − {numbers.number(mean)}, the group's mean"
    match method:
        case "none":
            return "Advantage = reward: there is no baseline.", [(None, None)] * len(rewards)
        case "leave_one_out":
            others = [None if reward is None else (total - reward) / max(1, len(known) - 1) for reward in rewards]
            return "Advantage = reward − the mean of the other members.", [(other, None) for other in others]
        case "mean_std":
            divisor = deviation(known, ddof)
            sentence += f", divided by its deviation of {numbers.number(divisor)}"
        case "max_rl":
            divisor = mean
            sentence += ", divided by that mean" if mean > 0 else "; it is not positive, so every advantage is 0"
        case "length_weighted":
            base = length_weighted_mean(rewards, lengths)
            sentence = f"Advantage = reward − {numbers.number(base)}, the group's mean weighted by trained tokens"
    return f"{sentence}.", [(base, divisor)] * len(rewards)


def _line(reward: float | None, advantage: float | None, base: float | None, divisor: float | None) -> str:
    if reward is None:
        return "failed: no reward, and not trained on"
    if advantage is None:
        return "not trained on; its reward counts for the others"
    if base is None:
        return numbers.signed(advantage)
    line = f"{numbers.number(reward)} − {numbers.number(base)} = {numbers.signed(reward - base)}"
    return line if divisor is None else f"{line}, ÷ {numbers.number(divisor)} = {numbers.signed(advantage)}"
