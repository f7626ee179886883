"""A rollout as a line: what was asked, what the policy answered, and how much of it is left out here."""

from dataclasses import dataclass
from typing import Any

from frontend.conversation import in_a_line
from rollouts.models import Rollout, ScoredGroup

PROMPT_CHARACTERS = 400
COMPLETION_CHARACTERS = 500


@dataclass(frozen=True)
class Excerpt:
    """The beginning of a text, and how many characters follow it."""

    text: str
    left_out: int = 0

    @classmethod
    def of(cls, text: str, limit: int) -> "Excerpt":
        return cls(text[:limit], max(0, len(text) - limit))


@dataclass(frozen=True)
class RolloutLine:
    """One rollout of a list."""

    rollout: Rollout
    completion: Excerpt
    turns: int
    """Turns of the policy; the completion is the last."""
    advantage: float | None


@dataclass(frozen=True)
class GroupLine:
    """A group of a list: its prompt once, then its rollouts."""

    group: ScoredGroup
    prompt: Excerpt
    rollouts: list[RolloutLine]
    step: int | None
    """The step it is batched for or was trained in."""

    @property
    def rewards(self) -> list[float | None]:
        return [line.rollout.counting_reward for line in self.rollouts]


def of_group(group: ScoredGroup) -> GroupLine:
    """Excerpts of a group that was loaded with its rollouts and batch items; no query."""
    rollouts = list(group.rollouts.all())
    item = next(iter(group.batch_items.all()), None)
    advantages: list[float | None] = item.advantages if item else []
    lines = [
        RolloutLine(
            rollout=rollout,
            completion=Excerpt.of(_last_answer(rollout.messages), COMPLETION_CHARACTERS),
            turns=sum(message.get("role") == "assistant" for message in rollout.messages),
            advantage=advantages[at] if at < len(advantages) else None,
        )
        for at, rollout in enumerate(rollouts)
    ]
    prompt = split_prompt(rollouts[0].messages)[0] if rollouts else []
    asked = next((in_a_line(message) for message in reversed(prompt) if message.get("role") == "user"), "")
    return GroupLine(group, Excerpt.of(asked, PROMPT_CHARACTERS), lines, item.batch.step if item else None)


def split_prompt(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What came before the policy's first turn, and the rest."""
    first = next((at for at, message in enumerate(messages) if message.get("role") == "assistant"), len(messages))
    return messages[:first], messages[first:]


def _last_answer(messages: list[dict[str, Any]]) -> str:
    return next((in_a_line(message) for message in reversed(messages) if message.get("role") == "assistant"), "")
