"""Corrections: a rollout's messages with other words in the policy's mouth. The rollout stays as it is."""

from collections.abc import Sequence
from typing import Any

import msgspec

from rollouts.models.curation import MAX_EDITED_BYTES
from rollouts.storable import data_faults

Messages = Sequence[dict[str, Any]]
_ROLE = "assistant"
_THOUGHTS = "reasoning_content"
"""What a policy thought before it spoke. Learned with what it says, so one who corrects that corrects this too."""


def last_reply(messages: Messages) -> str | None:
    """What the policy said last, if it is text that a person can put other text in place of: with what was thought
    before it short enough for a form, in a conversation that may be stored once more."""
    at = _place(messages)
    content = None if at is None else messages[at].get("content")
    if not isinstance(content, str):
        return None
    shown = len(content.encode()) + len(last_thoughts(messages).encode())
    fits = shown <= MAX_EDITED_BYTES // 2 and len(msgspec.json.encode(messages)) <= MAX_EDITED_BYTES
    return content if fits else None


def last_thoughts(messages: Messages) -> str:
    """What the policy thought before it said that."""
    at = _place(messages)
    thoughts = None if at is None else messages[at].get(_THOUGHTS)
    return thoughts if isinstance(thoughts, str) else ""


def with_last_reply(messages: Messages, text: str, thoughts: str | None = None) -> list[dict[str, Any]] | None:
    """The messages with this as what the policy said last, and with these thoughts, or with none where they are empty;
    without `thoughts` those stay. None: it says and thinks nothing else than before.

    Line breaks come from a form, which makes two characters of each.
    """
    at, before = _place(messages), last_reply(messages)
    if at is None or before is None:
        return None
    changed: dict[str, Any] = {} if _unix(text) == _unix(before) else {"content": _unix(text)}
    if thoughts is not None and _unix(thoughts) != _unix(last_thoughts(messages)):
        changed[_THOUGHTS] = _unix(thoughts)
    if not changed:
        return None
    said = {key: value for key, value in (messages[at] | changed).items() if key != _THOUGHTS or value}
    return [said if place == at else message for place, message in enumerate(messages)]


def fault(messages: Messages, edited: Messages) -> str:
    """What is wrong with messages in the place of a rollout's; empty: nothing."""
    if len(edited) != len(messages):
        return f"must be all {len(messages)} messages of the rollout"
    for at, (before, after) in enumerate(zip(messages, edited, strict=True)):
        is_same = _beside_words(before) == _beside_words(after)
        is_text = isinstance(after.get("content"), str) and isinstance(after.get(_THOUGHTS), str | None)
        if after != before and not (before.get("role") == _ROLE and is_same and is_text):
            return f"must differ in nothing but the text of what the policy said and thought, and message {at} does"
    if list(edited) == list(messages):
        return "must differ from what the policy said or thought"
    if len(msgspec.json.encode(edited)) > MAX_EDITED_BYTES:
        return f"must have at most {MAX_EDITED_BYTES} bytes"
    return next((f"{place}: {why}" for place, why in data_faults(list(edited))), "")


def changed(messages: Messages, edited: Messages) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each message that was corrected, as it was and as it is now."""
    return [(before, after) for before, after in zip(messages, edited, strict=False) if before != after]


def _beside_words(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key not in ("content", _THOUGHTS)}


def _place(messages: Messages) -> int | None:
    return next((at for at in reversed(range(len(messages))) if messages[at].get("role") == _ROLE), None)


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
