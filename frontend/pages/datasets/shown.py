"""A member of a version as its page shows it: what is learned, where it is from, and what stands beside it."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from environments.types import Split
from rollouts.models import DatasetMember


@dataclass(frozen=True)
class ShownMember:
    """One member."""

    member: DatasetMember
    messages: list[dict[str, Any]]
    """What is learned; of a pair the better one."""
    original: list[dict[str, Any]]
    """What a person corrected; empty: nothing was."""
    other: list[dict[str, Any]]
    """Of a pair the worse one."""
    text: str
    """The line of a file that has no messages, as JSON."""
    step: int | None
    """In which its group was trained, or for which it is batched."""

    @property
    def is_held_out(self) -> bool:
        return self.member.split == Split.EVAL

    @property
    def reward(self) -> float | None:
        """That of its rollout which counts, by which it was chosen: people's, if they gave one."""
        rollout, group = self.member.rollout, self.member.group
        if rollout is None or group is None:
            return None
        rollout.group = group  # which was loaded with the member
        return rollout.counting_reward

    @property
    def where(self) -> str:
        """The problem it is of."""
        group = self.member.group
        return (group.problem_key or group.key) if group else ""


def of_members(members: Iterable[DatasetMember]) -> list[ShownMember]:
    """Members that were loaded with what they refer to (`selectors.datasets.members`)."""
    return [_of_row(member) if member.row is not None else _of_rollout(member) for member in members]


def _of_rollout(member: DatasetMember) -> ShownMember:
    original = member.rollout.messages if member.rollout else []
    correction = member.correction.edited if member.correction else None
    items = member.group.batch_items.all() if member.group else ()
    item = next((item for item in items if item.replay == 0), None)  # a replay is a step of another run
    return ShownMember(
        member=member,
        messages=_messages(original if correction is None else correction),
        original=[] if correction is None else _messages(original),
        other=_messages(member.other.messages) if member.other and member.other_id != member.rollout_id else [],
        text="",
        step=item.batch.step if item else None,
    )


def _of_row(member: DatasetMember) -> ShownMember:
    row = member.row or {}
    messages = _messages(row.get("messages") or row.get("chosen"))
    text = "" if messages else json.dumps(row, ensure_ascii=False, indent=2)
    return ShownMember(member, messages, [], _messages(row.get("rejected")), text, None)


def _messages(value: Any) -> list[dict[str, Any]]:
    """Messages, if the value is a list of them; a file may have anything else there."""
    is_conversation = isinstance(value, list) and all(isinstance(each, dict) for each in value)
    return value if is_conversation else []
