"""Why each rollout of a group got its advantage: the arithmetic of `trainers/advantages.py` in words."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from environments.types import StopReason
from frontend import numbers
from rollouts.models import Rollout
from trainers.advantages import algorithm_advantages, comparison, of_seats
from trainers.run_config import AdvantageMethod, AlgorithmConfig

_NO_REWARD = "No member has a reward, so there is no advantage."
_ZEROED = "set to 0 by the environment; its reward counts for the others"


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


def explain(
    algorithm: AlgorithmConfig,
    rollouts: Sequence[Rollout],
    stored: Sequence[float | None] | None,
    *,
    per_token: bool = False,
    zeroed: Collection[int] = (),
) -> Explanation:
    """Explain the advantages of a group's batch, or say what they would be while the group is in none.

    `algorithm`: what groups of its environment are trained by. `per_token`: the environment sent an advantage for each
    token, which stands in place of these. `zeroed`: positions of rollouts whose advantage it set to 0. Rollouts of
    matches are compared with those of their own seat: there is a sentence for each.
    """
    members, sentences = [MemberWhy(None, "")] * len(rollouts), []
    for own in of_seats([rollout.seat for rollout in rollouts]):
        of_own = [rollouts[at] for at in own]
        found = _explain(
            algorithm,
            of_own,
            [stored[at] for at in own] if stored else None,
            per_token=per_token,
            zeroed=[index for index, at in enumerate(own) if at in zeroed],
        )
        seat = of_own[0].seat
        sentences.append(f"Seat {seat}: {found.sentence}" if seat else found.sentence)
        for at, member in zip(own, found.members, strict=True):
            members[at] = member
    return Explanation(" ".join(sentences) or _NO_REWARD, members)


def _explain(
    algorithm: AlgorithmConfig,
    rollouts: Sequence[Rollout],
    stored: Sequence[float | None] | None,
    *,
    per_token: bool,
    zeroed: Collection[int],
) -> Explanation:
    rewards = [rollout.counting_reward for rollout in rollouts]
    known = [reward for reward in rewards if reward is not None]
    if not known:
        return Explanation(_NO_REWARD, [MemberWhy(None, "")] * len(rewards))
    lengths = [rollout.trained_token_count for rollout in rollouts]
    is_cut = [rollout.stop_reason == StopReason.LENGTH for rollout in rollouts]
    advantages = stored or algorithm_advantages(algorithm, rewards, lengths, is_cut, zeroed=zeroed)
    method = algorithm.advantage_method
    if per_token:
        sentence = "The environment sent an advantage for each token, in place of one from the reward."
        return Explanation(sentence, [MemberWhy(None, "") for _ in rollouts])
    if min(known) == max(known) and method != "none":
        other = algorithm.gradient_without_advantage()
        but = f" but that of algorithm.{other}" if other else ""
        zero = f"All rewards are {numbers.number(known[0])}: every advantage is 0"
        sentence = f"{zero}, so the group carries no gradient{but}."
        return Explanation(sentence, [MemberWhy(value, "") for value in advantages])
    base, divisor = comparison(rewards, method, algorithm.std_ddof, lengths)
    sentence = _arithmetic(method, base, divisor)
    return Explanation(
        sentence if algorithm.loss.uses_advantages else f"The loss {algorithm.loss.type} does not look at advantages.",
        [
            # Batches that were formed before overrides were heeded keep the advantages that they trained.
            MemberWhy(advantage, _ZEROED)
            if at in zeroed and advantage == 0
            else MemberWhy(advantage, _line(reward, advantage, method, base, divisor))
            for at, (reward, advantage) in enumerate(zip(rewards, advantages, strict=True))
        ],
    )


def _arithmetic(method: AdvantageMethod, base: float, divisor: float) -> str:
    """The rule as a sentence."""
    sentence = f"Advantage = reward − {numbers.number(base)}, the group's mean"
    match method:
        case "none":
            return "Advantage = reward: there is no baseline."
        case "leave_one_out":
            return "Advantage = reward − the mean of the other members."
        case "length_weighted":
            sentence += " weighted by trained tokens"
        case "mean_std":
            sentence += f", divided by its deviation of {numbers.number(divisor)}"
        case "max_rl":
            sentence += ", divided by that mean" if divisor > 0 else "; it is not positive, so every advantage is 0"
    return f"{sentence}."


def _line(reward: float | None, advantage: float | None, method: AdvantageMethod, base: float, divisor: float) -> str:
    if reward is None:
        return "failed: no reward, and not trained on"
    if advantage is None:
        return "not trained on; its reward counts for the others"
    if method == "none":
        return numbers.signed(advantage)
    if method == "leave_one_out":
        base = reward - advantage  # the mean of the others
    line = f"{numbers.number(reward)} − {numbers.number(base)} = {numbers.signed(reward - base)}"
    divided = method in ("mean_std", "max_rl")
    return f"{line}, ÷ {numbers.number(divisor)} = {numbers.signed(advantage)}" if divided else line
