"""What an evaluation found, in figures: of rollouts in a file, and of those in the store."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from environments import estimates
from environments.types import PlayedGroup, PlayedRollout, StopReason

PROMPT_TOKENS, COMPLETION_TOKENS = "endpoint/prompt_tokens", "endpoint/completion_tokens"
"""Metrics of a rollout that an endpoint played: what its server says that it cost, 0 where it says nothing."""
REPLIES = "endpoint/replies"
"""Metric of a rollout of which an endpoint gave fewer of the assistant's last messages than it was asked for: how many.
An environment wrote others anew, so that the conversation that is kept is not the one that was had. It is read in
`rollouts/sql/sampled_masks.sql`."""
_MOST_TOKENS = 2**31 - 1
"""That one rollout is believed to have: code that writes metrics may write this one too."""


class PlayedProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One problem, as often as it was played."""

    scores: Sequence[float]
    """Of the rollouts that have one: neither the environment nor the policy failed them."""
    rollouts: int
    tokens: int
    """That the policy sampled, in all rollouts."""
    truncated: int = 0
    """Rollouts that a token budget ended."""
    out_of_turns: int = 0
    """Rollouts that the limit of turns ended."""
    errors: Sequence[str] = ()
    """Kind and type of each that failed."""


def of_group(group: PlayedGroup) -> PlayedProblem:
    """The same of a group that is in no store."""
    failed = [rollout.error for rollout in group.rollouts if rollout.error is not None]
    return PlayedProblem(
        scores=[rollout.reward for rollout in group.rollouts if rollout.reward is not None],
        rollouts=len(group.rollouts),
        tokens=sum(map(sampled_tokens, group.rollouts)),
        truncated=sum(rollout.stop_reason is StopReason.LENGTH for rollout in group.rollouts),
        out_of_turns=sum(rollout.stop_reason is StopReason.TURNS for rollout in group.rollouts),
        errors=[f"{error.kind}: {error.type}" for error in failed],
    )


def sampled_tokens(rollout: PlayedRollout) -> int:
    """How many tokens a rollout's player sampled, shown or not."""
    return sum(rollout.loss_mask) + int(min(max(rollout.metrics.get(COMPLETION_TOKENS, 0.0), 0.0), _MOST_TOKENS))


def summarise(played: Iterable[PlayedProblem], *, threshold: float = 1.0) -> dict[str, Any]:
    """avg@n, pass@k and pass^k with their intervals over problems, for k of 1, 2, 4, ... up to the samples, and n.

    A figure is of the problems with as many scores as it needs, and says of how many. `threshold`: from which reward a
    rollout is right.
    """
    problems = list(played)
    solved = [problem.scores for problem in problems if problem.scores]
    errors = Counter(error for problem in problems for error in problem.errors)
    found: dict[str, Any] = {
        "problems": len(problems),
        "problems_without_a_score": len(problems) - len(solved),
        "rollouts": sum(problem.rollouts for problem in problems),
        "failed": errors.total(),
        "errors": dict(errors),
        "truncated": sum(problem.truncated for problem in problems),
        "out_of_turns": sum(problem.out_of_turns for problem in problems),
        "tokens": sum(problem.tokens for problem in problems),
    }
    if not solved:
        return found
    samples = max(map(len, solved))
    found[f"avg@{samples}"] = _told(estimates.mean(solved), solved)
    for k in sorted({*(2**power for power in range(samples.bit_length())), samples}):
        enough = [scores for scores in solved if len(scores) >= k]
        found[f"pass@{k}"] = _told(estimates.at_k(enough, k, threshold=threshold), enough)
        found[f"pass^{k}"] = _told(estimates.hat_k(enough, k, threshold=threshold), enough)
    return found


def _told(estimate: estimates.Estimate, solved: Sequence[Sequence[float]]) -> dict[str, float]:
    return estimate._asdict() | {"problems": len(solved)}
