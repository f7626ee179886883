"""What an evaluation found, in figures."""

from collections.abc import Iterable
from typing import Any

from environments import estimates
from environments.types import PlayedGroup, StopReason


def summarise(groups: Iterable[PlayedGroup], *, threshold: float = 1.0) -> dict[str, Any]:
    """avg@n, pass@k and pass^k with their intervals over problems, for k of 1, 2, 4, ... up to the samples.

    A rollout that failed by its environment or by the policy has no score. A figure is of the problems with as many
    scores as it needs, and says of how many. `threshold`: from which reward a rollout is right.
    """
    solved, tokens, truncated, failed = [], 0, 0, 0
    errors: dict[str, int] = {}
    problems = 0
    for group in groups:
        problems += 1
        scores = [rollout.reward for rollout in group.rollouts if rollout.reward is not None]
        if scores:
            solved.append(scores)
        for rollout in group.rollouts:
            tokens += sum(rollout.loss_mask)
            truncated += rollout.stop_reason is StopReason.LENGTH
            if rollout.error is not None:
                failed += 1
                kind = f"{rollout.error.kind}: {rollout.error.type}"
                errors[kind] = errors.get(kind, 0) + 1
    found: dict[str, Any] = {
        "problems": problems,
        "problems_without_a_score": problems - len(solved),
        "rollouts": sum(map(len, solved)) + failed,
        "failed": failed,
        "errors": errors,
        "truncated": truncated,
        "tokens": tokens,
    }
    if not solved:
        return found
    samples = max(map(len, solved))
    found[f"avg@{samples}"] = _told(estimates.mean(solved), solved)
    for k in (2**power for power in range(samples.bit_length())):
        enough = [scores for scores in solved if len(scores) >= k]
        found[f"pass@{k}"] = _told(estimates.at_k(enough, k, threshold=threshold), enough)
        found[f"pass^{k}"] = _told(estimates.hat_k(enough, k, threshold=threshold), enough)
    return found


def _told(estimate: estimates.Estimate, solved: list[list[float]]) -> dict[str, float]:
    return estimate._asdict() | {"problems": len(solved)}
