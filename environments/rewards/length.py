"""Penalties of how much was written and how often the same: give them a negative weight."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

from environments.rewards import replies
from environments.rewards.registry import checked_by
from environments.types import FinishedRollout, Problem

_COUNTED = 20_000
"""Tokens, words or characters at the end among which repetitions are counted: a loop is at the end."""


def _check_length(*, soft: int, hard: int, **_: Any) -> None:
    if hard <= soft:
        raise ValueError(f"hard: {hard} has to be above soft, {soft}")


@checked_by(_check_length)
def length(
    problem: Problem,
    rollout: FinishedRollout,
    *,
    soft: Annotated[int, Meta(ge=0, description="Up to so many it is 0.")],
    hard: Annotated[int, Meta(ge=1, description="From so many it is 1; in between it is linear.")],
    by: Annotated[Literal["tokens", "characters"], Meta(description="What is counted.")] = "tokens",
) -> float:
    """How far all that the policy wrote, thoughts and calls included, is on its way from a soft to a hard limit.

    Tokens are those that were sampled, of every turn; characters those of text and thoughts.
    """
    count = sum(rollout.loss_mask) if by == "tokens" else len(replies.everything(problem, rollout))
    return min(1.0, max(0.0, (count - soft) / (hard - soft)))


def repetition(
    problem: Problem,
    rollout: FinishedRollout,
    *,
    n: Annotated[int, Meta(ge=1, le=64, description="How many in a row are one n-gram.")] = 4,
    by: Annotated[
        Literal["tokens", "words", "characters"],
        Meta(description="Of what. A language without spaces, or a word that never ends, has few words."),
    ] = "tokens",
) -> float:
    """Share of the n-grams that were there before, among the last 20,000 tokens, words or characters of the policy."""
    items = _items(problem, rollout, by)[-_COUNTED:]
    grams = len(items) - n + 1
    if grams < 1:
        return 0.0
    distinct = set(zip(*(items[offset : offset + grams] for offset in range(n)), strict=True))
    return 1 - len(distinct) / grams


def _items(problem: Problem, rollout: FinishedRollout, by: str) -> Sequence[Any]:
    if by == "tokens":
        return [token for token, mask in zip(rollout.token_ids, rollout.loss_mask, strict=True) if mask]
    written = replies.everything(problem, rollout)
    return written.split() if by == "words" else written
