"""Lines of data: every form is understood, and what cannot be trained on is named with its line and its fix."""

import json
from typing import Any

import pytest

from trainers.data.examples import Conversation, Example, Text, Tokens, parse_example, parse_pair, parse_wanted
from trainers.errors import DataError

USER = {"role": "user", "content": "ab"}
GOOD = {"role": "assistant", "content": "ba"}
BAD = {"role": "assistant", "content": "ab"}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": None}}}


def example(roles: tuple[str, ...] = ("assistant",), **line: Any) -> Example:
    return parse_example(json.dumps(line).encode(), "f:1", roles)


def complaint(parse: Any, **line: Any) -> str:
    with pytest.raises(DataError) as caught:
        parse(json.dumps(line).encode(), "f:1", ["assistant"])
    assert str(caught.value).startswith("f:1")
    return str(caught.value)


def test_messages_are_a_conversation_and_other_keys_are_ignored() -> None:
    assert example(messages=[USER, GOOD], reward=1.0) == Conversation([USER, GOOD])


def test_of_prompt_and_completion_only_the_completion_is_trained() -> None:
    assert example(prompt="ab", completion="ba") == Text("ab", "ba")
    conversation = Conversation([USER, GOOD, USER, BAD], None, prompt_messages=3)
    assert example(prompt=[USER, GOOD, USER], completion=[BAD]) == conversation
    assert example(prompt=[USER, GOOD, USER], completion="ab") == conversation
    assert example(prompt="ab", completion=[GOOD]) == Conversation([USER, GOOD], None, 1)


def test_tokens_are_taken_as_they_are() -> None:
    assert example(token_ids=[1, 2], loss_mask=[0, 1]) == Tokens([1, 2], [0, 1])


def test_tools_and_arguments_of_their_calls_may_be_text() -> None:
    tools = [{"type": "function", "function": {"name": "add"}}]
    as_text = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": null}'}}
    said = {"role": "assistant", "content": None, "tool_calls": [as_text], "name": None}
    parsed = example(messages=[USER, said], tools=json.dumps(tools))
    assert parsed == Conversation([USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}], tools)


def test_content_in_parts_of_text_is_text() -> None:
    parts = [{"type": "text", "text": "b"}, {"type": "text", "text": "a"}]
    assert example(messages=[USER, {"role": "assistant", "content": parts}]) == Conversation([USER, GOOD])


def test_an_empty_list_of_calls_is_none() -> None:
    """As servers write it, and as templates would take for calls."""
    assert example(messages=[USER, GOOD | {"tool_calls": []}]) == Conversation([USER, GOOD])


def test_what_is_to_be_avoided_is_not_imitated() -> None:
    line = {"prompt": "ab", "completion": "ba"}
    assert "Remove such lines, or import the file" in complaint(parse_wanted, **line, label=False)
    for label in (True, None, 0, "no"):
        assert parse_wanted(json.dumps(line | {"label": label}).encode(), "f:1", ["assistant"]) == Text("ab", "ba")


def test_a_reply_may_be_all_reasoning() -> None:
    thought = {"role": "assistant", "content": None, "reasoning_content": "hm"}
    assert example(messages=[USER, thought]) == Conversation([USER, thought | {"content": ""}])


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ({"messages": [USER]}, "needs a message of assistant to train on; the roles are ['user']"),
        ({"messages": []}, "needs a message of assistant"),
        ({"messages": [GOOD]}, "needs another message before the assistant's"),
        ({"messages": [{"role": "king", "content": "x"}]}, "'king' is no role. Use one of: system,"),
        ({"messages": "x"}, "Expected `array | null`, got `str` - at `$.messages`"),
        ({"messages": [USER, {"role": "assistant"}]}, "content of a message must be text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}, GOOD]}, "parts that are not text"),
        ({"messages": [USER, GOOD | {"tool_calls": [{"name": "add"}]}]}, "a tool call must look like"),
        ({"messages": [USER, GOOD | {"tool_calls": 5}]}, "tool_calls must be a list"),
        ({"messages": [USER, GOOD], "tools": "{"}, "tools is text that is no JSON"),
        ({"messages": [USER, GOOD], "tools": "[" * 100_000}, "nested too deep"),
        ({"prompt": [USER, GOOD], "completion": [USER]}, "needs a message of assistant"),
        ({"prompt": "x"}, "neither `messages`, nor"),
        ({"prompt": "x", "completion": [USER, GOOD]}, "a conversation of its own, without the `prompt`"),
        ({"prompt": [USER, GOOD], "completion": [{"role": "system", "content": "s"}, GOOD]}, "without the `prompt`"),
        ({"prompt": "x", "chosen": "a", "rejected": "b"}, "Set data.preference.beta"),
        ({"token_ids": [1, 2], "loss_mask": [1]}, "2 token ids and 1 of a mask"),
        ({"token_ids": [1, 2], "loss_mask": [1, 0]}, "trains no token behind the first"),
    ],
)
def test_an_example_that_cannot_be_trained_on_is_refused_with_the_fix(line: dict[str, Any], hint: str) -> None:
    assert hint in complaint(parse_example, **line)


def test_a_line_that_is_no_json_is_named() -> None:
    for line in (b"{", b"[]", b'{"prompt": "\xff"}'):
        with pytest.raises(DataError, match=r"^f:7: .*A line is one JSON object"):
            parse_example(line, "f:7", ["assistant"])


def test_other_roles_can_be_asked_for() -> None:
    assert example(("user",), messages=[USER]) == Conversation([USER])


def test_what_two_answers_have_in_common_is_their_prompt() -> None:
    line = {"chosen": [USER, GOOD, USER, GOOD], "rejected": [USER, GOOD, USER, BAD]}
    pair = parse_pair(json.dumps(line).encode(), "f:1", ["assistant"])
    assert pair.chosen == Conversation(line["chosen"], None, 3)
    assert pair.rejected == Conversation(line["rejected"], None, 3)


@pytest.mark.parametrize("prompt", ["ab", [USER]])
def test_a_prompt_that_the_answers_begin_with_again_is_there_once(prompt: Any) -> None:
    line = {"prompt": prompt, "chosen": [USER, GOOD], "rejected": [USER, BAD]}
    pair = parse_pair(json.dumps(line).encode(), "f:1", ["assistant"])
    assert (pair.chosen, pair.rejected) == (Conversation([USER, GOOD], None, 1), Conversation([USER, BAD], None, 1))


SYSTEM = {"role": "system", "content": "s"}


@pytest.mark.parametrize("before", [[SYSTEM], [SYSTEM, {"role": "user", "content": "first"}, GOOD]])
def test_a_prompt_that_stands_further_on_in_the_answers_is_there_once(before: list[Any]) -> None:
    line = {"prompt": "ab", "chosen": [*before, USER, GOOD], "rejected": [*before, USER, BAD]}
    pair = parse_pair(json.dumps(line).encode(), "f:1", ["assistant"])
    for one, reply in ((pair.chosen, GOOD), (pair.rejected, BAD)):
        assert one == Conversation([*before, USER, reply], None, len(before) + 1)


def test_what_a_user_says_again_later_is_not_the_prompt() -> None:
    said = example(prompt=[USER], completion=[GOOD, USER, BAD])
    assert said == Conversation([USER, GOOD, USER, BAD], None, 1)
    goes_on = example(prompt=[USER, GOOD], completion=[{"role": "user", "content": "more"}, BAD])
    assert goes_on == Conversation([USER, GOOD, {"role": "user", "content": "more"}, BAD], None, 2)


def test_pairs_take_prompts_and_answers_as_text_messages_or_tokens() -> None:
    def pair(**line: Any) -> tuple[Example, Example]:
        parsed = parse_pair(json.dumps(line).encode(), "f:1", ["assistant"])
        return parsed.chosen, parsed.rejected

    assert pair(prompt="ab", chosen="ba", rejected="ab") == (Text("ab", "ba"), Text("ab", "ab"))
    conversations = (Conversation([USER, GOOD], None, 1), Conversation([USER, BAD], None, 1))
    assert pair(prompt=[USER], chosen=[GOOD], rejected=[BAD]) == conversations
    one, other = {"token_ids": [1, 2], "loss_mask": [0, 1]}, {"token_ids": [1, 3], "loss_mask": [0, 1]}
    assert pair(chosen=one, rejected=other) == (Tokens([1, 2], [0, 1]), Tokens([1, 3], [0, 1]))


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ({"messages": [USER, GOOD]}, "leave data.preference out"),
        ({"prompt": "x", "chosen": "a", "rejected": "a"}, "are the same"),
        ({"chosen": "a", "rejected": "b"}, "need a `prompt`"),
        ({"chosen": {"token_ids": [1, 2], "loss_mask": [0, 1]}, "rejected": "b"}, "Give both in the same form"),
        ({"chosen": [USER, GOOD], "rejected": [USER]}, "rejected: needs a message of assistant"),
    ],
)
def test_a_pair_that_cannot_be_trained_on_is_refused_with_the_fix(line: dict[str, Any], hint: str) -> None:
    assert hint in complaint(parse_pair, **line)
