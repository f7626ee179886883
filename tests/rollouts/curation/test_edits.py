"""Corrections: what the policy should have said, beside what it said, and nothing else of the rollout."""

from typing import Any

import pytest

from rollouts.errors import Invalid
from rollouts.models import Label, Rollout, Run, ScoredGroup
from rollouts.models.curation import MAX_EDITED_BYTES
from rollouts.services.curation import edits, labels
from tests.factories import somebody
from tests.rollouts import story

pytestmark = pytest.mark.django_db
MESSAGES = [
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "let me see", "tool_calls": []},
    {"role": "tool", "content": "4"},
    {"role": "assistant", "content": "five\nor so"},
]


@pytest.fixture
def rollout() -> Rollout:
    run: Run = story.launch()
    group = story.scored("a")
    group.rollouts[0].messages = MESSAGES
    story.submit(run, [group], actor="api:t")
    return Rollout.objects.get(group__key="a", index=0)


def say(edited: Any, **fields: Any) -> Label:
    row = ScoredGroup.objects.get(key="a")
    said = {"verdict": "accept", "rollout": 0} | fields
    return labels.say(row, user=somebody(), actor="user:somebody", edited=edited, **said)


def changed(at: int, **fields: Any) -> list[dict[str, Any]]:
    return [message | fields if place == at else message for place, message in enumerate(MESSAGES)]


def test_the_last_reply_is_edited_and_the_rollout_stays(rollout: Rollout) -> None:
    assert edits.last_reply(rollout.messages) == "five\nor so"
    edited = edits.with_last_reply(rollout.messages, "four\r\nexactly")
    said = say(edited)
    said.refresh_from_db()
    assert said.edited == changed(3, content="four\nexactly")
    rollout.refresh_from_db()
    assert rollout.messages == MESSAGES
    assert edits.changed(rollout.messages, said.edited) == [(MESSAGES[3], said.edited[3])]


def test_what_says_the_same_with_a_forms_line_breaks_is_no_correction(rollout: Rollout) -> None:
    assert edits.with_last_reply(rollout.messages, "five\r\nor so") is None
    assert edits.last_reply([{"role": "user", "content": "x"}]) is None
    assert edits.last_reply([{"role": "assistant", "content": None}]) is None


THOUGHT = [MESSAGES[0], MESSAGES[3] | {"reasoning_content": "2 + 2 is\nfive"}]


def test_what_was_thought_is_corrected_with_what_was_said_or_left_out() -> None:
    assert edits.last_thoughts(THOUGHT) == "2 + 2 is\nfive"
    assert edits.last_thoughts(MESSAGES) == ""
    same, said = "2 + 2 is\r\nfive", "five\r\nor so"
    assert edits.with_last_reply(THOUGHT, said, same) is None
    for text, thoughts, expected in (
        ("four", None, {"content": "four", "reasoning_content": "2 + 2 is\nfive"}),
        ("four", "it is\r\nfour", {"content": "four", "reasoning_content": "it is\nfour"}),
        ("four", "", {"content": "four"}),
        (said, "about four", {"content": "five\nor so", "reasoning_content": "about four"}),
    ):
        edited = edits.with_last_reply(THOUGHT, text, thoughts)
        assert edited == [THOUGHT[0], {"role": "assistant"} | expected]
        assert edits.fault(THOUGHT, edited) == ""
    without = [THOUGHT[0], THOUGHT[1] | {"reasoning_content": None}]
    assert edits.fault(without, [without[0], without[1] | {"content": "four"}]) == ""


@pytest.mark.parametrize(
    "edited",
    [
        MESSAGES,
        MESSAGES[:-1],
        [*MESSAGES, {"role": "assistant", "content": "more"}],
        changed(0, content="3 + 3?"),
        changed(2, content="6"),
        changed(3, role="user"),
        changed(3, content=None),
        changed(3, content=["four"]),
        changed(3, content="four", name="x"),
        changed(3, content="four", reasoning_content=4),
        changed(2, reasoning_content="hm"),
        changed(3, content="\0"),
        changed(3, content="x" * MAX_EDITED_BYTES),
    ],
)
def test_what_is_no_correction_is_refused_by_the_name_of_the_field(rollout: Rollout, edited: Any) -> None:
    with pytest.raises(Invalid) as refused:
        say(edited)
    assert list(refused.value.fields) == ["edited"]
    assert not Label.objects.exists()


@pytest.mark.parametrize("of", [{"rollout": None}, {"other": 1, "preference": "tie"}])
def test_one_rollout_is_corrected(rollout: Rollout, of: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as refused:
        say(changed(3, content="four"), **of)
    assert list(refused.value.fields) == ["edited"]


def test_a_reply_is_offered_for_correction_as_long_as_a_form_and_its_column_hold_it() -> None:
    def spoken(content: str, thoughts: str = "", before: str = "") -> list[dict[str, Any]]:
        return [
            {"role": "user", "content": before},
            {"role": "assistant", "content": content, "reasoning_content": thoughts},
        ]

    half = MAX_EDITED_BYTES // 2
    assert edits.last_reply(spoken("a" * (half - 3), "三")) is not None
    assert edits.last_reply(spoken("a" * (half - 2), "三")) is None
    assert edits.last_reply(spoken("a", before="b" * (MAX_EDITED_BYTES - 200))) == "a"
    assert edits.last_reply(spoken("a", before="b" * MAX_EDITED_BYTES)) is None
