"""The vocabulary on the wire: names, and which messages there are."""

from typing import Any

import msgspec
import pytest

from environments import types
from environments.types import FunctionCall, Message, TextPart, ToolCall


@pytest.mark.parametrize(("before", "now"), [("Rollout", types.PlayedRollout), ("ScoredGroup", types.PlayedGroup)])
def test_names_of_before_still_import_and_say_what_they_are_called_now(before: str, now: type) -> None:
    with pytest.warns(DeprecationWarning, match=now.__name__):
        assert getattr(types, before) is now


def test_a_name_that_never_was_is_none() -> None:
    assert not hasattr(types, "Trajectory")


CALL = {"id": "1", "function": {"name": "add", "arguments": "{}"}, "type": "function"}


@pytest.mark.parametrize(
    ("message", "data", "text"),
    [
        (Message("user", "hi"), {"role": "user", "content": "hi"}, "hi"),
        (Message("assistant", ""), {"role": "assistant", "content": ""}, ""),
        (
            Message("user", [TextPart("a"), TextPart("b")]),
            {"role": "user", "content": [{"text": "a", "type": "text"}, {"text": "b", "type": "text"}]},
            "ab",
        ),
        (
            Message("assistant", tool_calls=[ToolCall("1", FunctionCall("add", "{}"))]),
            {"role": "assistant", "tool_calls": [CALL]},
            "",
        ),
        (
            Message("tool", "3", tool_call_id="1"),
            {"role": "tool", "content": "3", "tool_call_id": "1"},
            "3",
        ),
        (
            Message("assistant", reasoning_content="hm"),
            {"role": "assistant", "reasoning_content": "hm"},
            "",
        ),
    ],
)
def test_a_message_is_written_in_the_openai_form_and_read_back(message: Message, data: Any, text: str) -> None:
    assert msgspec.to_builtins(message) == data
    assert msgspec.json.decode(msgspec.json.encode(data), type=Message) == message
    assert message.text == text


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ({"role": "assistant"}, "content is missing"),
        ({"role": "tool", "tool_call_id": "1"}, "content is missing"),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, "only an assistant calls tools"),
        ({"role": "system", "content": "x", "reasoning_content": "y"}, "only an assistant calls tools"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "image_url"),
    ],
)
def test_a_message_that_nobody_could_say_is_refused(data: Any, fault: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=fault):
        msgspec.convert(data, Message)
