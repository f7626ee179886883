"""What the annotator shows of an item: a group with its rollouts, one rollout, or two side by side."""

from typing import Any, NamedTuple

from frontend.conversation import JsonObject
from frontend.differing import compared
from frontend.pages.run.rollouts.rollouts import split_prompt
from rollouts.models import Label, LabelPreference, LabelQueue, QueueItem, QueueTurn, QueueUnit, Rollout
from rollouts.selectors import curation, label_queues
from rollouts.services.curation import edits

_SHOWN_WORDS = 20
_TOLD = {
    LabelPreference.FIRST: "the first is better",
    LabelPreference.OTHER: "the second is better",
    LabelPreference.TIE: "neither is better",
}


class Said(NamedTuple):
    """What somebody else says of an item."""

    label: Label
    word: str


def shown(queue: LabelQueue, turn: QueueTurn, user: Any) -> dict[str, Any]:
    """The prompt once, the rollouts, what others say as far as the queue shows it, and the reply that may be edited."""
    item = turn.item
    rollouts = [each for each in (item.rollout, item.other) if each is not None] or _all(item)
    left = label_queues.standing_left(item, user) if item.other else None
    if left == LabelPreference.OTHER:
        rollouts.reverse()
    prompts = [split_prompt(rollout.messages) for rollout in rollouts]
    shared = prompts[0][0] if prompts else []
    is_shared = all(prompt == shared for prompt, _ in prompts)
    told = [rest if is_shared else rollout.messages for rollout, (_, rest) in zip(rollouts, prompts, strict=True)]
    correctable = item.rollout.messages if item.rollout and queue.unit == QueueUnit.ROLLOUT else []
    reply, thoughts = edits.last_reply(correctable), edits.last_thoughts(correctable)
    return {
        "turn": turn,
        "group": item.group,
        "run": item.group.run,
        "prompt": shared if is_shared else [],
        "members": [
            {"rollout": rollout, "messages": messages} for rollout, messages in zip(rollouts, told, strict=True)
        ],
        "pair": _beside(rollouts, told) if item.other else [],
        "words": [Said(label, _word(label, item, left)) for label in _words(queue, item)],
        # The first line break of a text area is taken for none.
        "reply": None if reply is None else f"\n{reply}",
        "thoughts": f"\n{thoughts}" if thoughts else "",
    }


def preference_of(side: str, item: QueueItem, user: Any) -> str:
    """What `left`, `right` or `tie` means of a pair as it stands before somebody; empty: it is none of them."""
    left = label_queues.standing_left(item, user)
    right = LabelPreference.OTHER if left == LabelPreference.FIRST else LabelPreference.FIRST
    return {"left": left.value, "right": right.value, "tie": LabelPreference.TIE.value}.get(side, "")


def _all(item: QueueItem) -> list[Rollout]:
    return list(item.group.rollouts.order_by("index"))


def _beside(rollouts: list[Rollout], told: list[list[JsonObject]]) -> list[JsonObject]:
    sides = compared(*told)
    return [
        {"rollout": rollout, "compared": messages, "side": side}
        for rollout, messages, side in zip(rollouts, sides, ("left", "right"), strict=True)
    ]


def _words(queue: LabelQueue, item: QueueItem) -> list[Label]:
    """What is decided about where a word decides; else all that is said of the group, unless the queue is blind."""
    if queue.is_blind:
        return []
    words = curation.words(item.group.run).filter(group=item.group)
    if queue.source_id is not None:
        words = words.filter(queue=queue.source_id, rollout=item.rollout_id, other=item.other_id)
    return list(words.defer("edited")[:_SHOWN_WORDS])


def _word(label: Label, item: QueueItem, left: LabelPreference | None) -> str:
    """A verdict or a preference, as the page has its sides."""
    if not label.preference:
        return label.verdict
    is_of_item = (label.rollout_id, label.other_id) == (item.rollout_id, item.other_id)
    if not is_of_item or label.preference == LabelPreference.TIE:
        return _TOLD[LabelPreference(label.preference)]
    return f"{'left' if label.preference == left else 'right'} is better"
