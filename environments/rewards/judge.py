"""`judge`: what another model says of the reply, by criteria or against an answer of the problem's."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from environments.errors import EndpointError, UnreadableVerdict
from environments.rewards import judging, replies
from environments.rewards.judging import Criterion, Judge
from environments.types import FinishedRollout, Problem

GOOD = Criterion(name="good", text="It does what is asked, is correct, and is clear.")

Asked = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$", description="Which of [[policies]] judges.")]
Guidance = Annotated[str, Meta(max_length=4_000, description="What else the judge is told to look at.")]
MaxTokens = Annotated[int, Meta(ge=16, le=32_768, description="Most tokens of what it says.")]
Temperature = Annotated[float, Meta(ge=0, le=2, description="Of the judge; 0 is greedy.")]
Seed = Annotated[int, Meta(ge=0, lt=2**31, description="The same question with the same seed is asked once.")]
Tries = Annotated[int, Meta(ge=1, le=5, description="Times that it is asked before its word is unreadable.")]
Fallback = Annotated[
    float | None, Meta(description="The score where the judge fails; by default the rollout fails then.")
]


async def judge(
    problem: Problem,
    rollout: FinishedRollout,
    *,
    policy: Asked = "judge",
    criteria: Annotated[
        tuple[Criterion, ...],
        Meta(min_length=1, max_length=16, description="What it scores by: names, texts, weights."),
    ] = (GOOD,),
    against: Annotated[
        str, Meta(description="Where problem.data has a reply to compare with, in place of criteria.")
    ] = "",
    guidance: Guidance = "",
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    tries: Tries = 2,
    fallback: Fallback = None,
) -> float:
    """The weighed mean of its scores, each from 0 to 1.

    With `against` 1 for a reply that is better than the one that it is compared with, 0 for a worse one, 0.5 for
    neither and where the judge prefers whoever is shown first. An empty reply is not asked about. Metrics: `judge/NAME`
    for every criterion, or `judge_disagreed`; `judge_failed` where there is a fallback.
    """
    asked = Judge(
        policy=policy, guidance=guidance, max_tokens=max_tokens, temperature=temperature, seed=seed, tries=tries
    )
    said = replies.answer(problem, rollout)
    reference = replies.wanted_texts(problem, against)[0] if against else ""
    failed = 0.0
    try:
        if against:
            found = await judging.compare(asked, problem, said, reference)
            rollout.metrics["judge_disagreed"] = float(found.disagreed)
            score = found.score
        else:
            scores = await judging.rate(asked, problem, said, criteria)
            rollout.metrics |= {f"judge/{name}": value for name, value in scores.items()}
            score = weighed(scores, criteria)
    except (EndpointError, UnreadableVerdict):
        if fallback is None:
            raise
        failed, score = 1.0, fallback
    if fallback is not None:
        # Of several parts with a judge: whether one of them failed.
        rollout.metrics["judge_failed"] = max(failed, rollout.metrics.get("judge_failed", 0.0))
    return score


def weighed(scores: dict[str, float], criteria: Sequence[Criterion]) -> float:
    """The mean of scores by the weights of their criteria."""
    return sum(each.weight * scores[each.name] for each in criteria) / sum(each.weight for each in criteria)
