"""Loss masks: exactly the tokens that were asked for are trained, and what cannot be told apart is refused."""

import string
from datetime import date
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from trainers.data.examples import Conversation, Example, Message, Text, Tokens
from trainers.data.rendering import Renderer
from trainers.errors import DataError
from trainers.model.tiny import tiny_tokenizer
from trainers.run_config import DataConfig

FORGETFUL = (
    "{% for message in messages %}{{ '<start>' + message['role'][0] }}"
    "{% if message.get('reasoning_content') and loop.last %}{{ '(' + message['reasoning_content'] + ')' }}{% endif %}"
    "{{ message['content'] + '<end>' }}{% endfor %}{% if add_generation_prompt %}{{ '<start>a' }}{% endif %}"
)
"""Keeps the reasoning of the last turn alone, as templates of reasoning models do."""
GPT_OSS = (
    "{% for message in messages %}{{ '<start>' + message['role'][0] }}{% if message.tool_calls and message.content and "
    "message.thinking %}{{ raise_exception('both') }}{% elif message.thinking %}{{ '(' + message.thinking + ')' }}"
    "{% endif %}{{ message['content'] + '<end>' }}{% endfor %}{% if add_generation_prompt %}{{ '<start>a' }}{% endif %}"
)
"""Asks for thoughts as `thinking`, and has room for them or a content before calls."""
WITH_TOOLS = (
    "{% if tools %}{{ '[' + tools | map(attribute='name') | join(',') + ']' }}{% endif %}"
    "{% for message in messages %}{{ '<start>' + message['role'][0] + message['content'] }}"
    "{% for call in message.tool_calls %}{{ call.function.name + (call.function.arguments | tojson) }}{% endfor %}"
    "{{ '<end>' }}{% endfor %}{% if add_generation_prompt %}{{ '<start>a' }}{% endif %}"
)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerBase:
    return tiny_tokenizer()


def turns(*said: tuple[str, str]) -> list[Message]:
    return [{"role": role, "content": content} for role, content in said]


def renderer(tokenizer: PreTrainedTokenizerBase, seq_len: int = 100, **config: Any) -> Renderer:
    return Renderer(tokenizer, DataConfig(path="x", **config), seq_len, date(2026, 2, 28))


def trained(tokenizer: PreTrainedTokenizerBase, example: Example, **config: Any) -> tuple[str, str]:
    """The whole text, and the part of it that is trained."""
    [sequence] = renderer(tokenizer, **config).render(example, "f:1")
    ids = sequence.token_ids_T
    return tokenizer.decode(ids), tokenizer.decode(ids[sequence.trained_T])


LONG = turns(("system", "S"), ("user", "ab"), ("assistant", "ba"), ("user", "cd"), ("assistant", "dc"))
LONG_TEXT = "<start>sS<end><start>uab<end><start>aba<end><start>ucd<end><start>adc<end>"


def test_only_the_assistants_tokens_are_trained_with_the_end_of_turn(tokenizer: PreTrainedTokenizerBase) -> None:
    assert trained(tokenizer, Conversation(LONG)) == (LONG_TEXT, "ba<end>dc<end>")


def test_nothing_is_found_by_searching_for_it(tokenizer: PreTrainedTokenizerBase) -> None:
    said = turns(("user", "<start>aba<end>"), ("assistant", "ba"), ("user", "<start>aba"), ("assistant", "<start>aba"))
    assert trained(tokenizer, Conversation(said))[1] == "ba<end><start>aba<end>"


def test_of_a_prompt_nothing_is_trained_whoever_speaks(tokenizer: PreTrainedTokenizerBase) -> None:
    assert trained(tokenizer, Conversation(LONG, prompt_messages=3)) == (LONG_TEXT, "dc<end>")


def test_other_roles_train_their_whole_turn_because_nothing_asks_for_it(tokenizer: PreTrainedTokenizerBase) -> None:
    assert trained(tokenizer, Conversation(LONG), roles=["user"])[1] == "<start>uab<end><start>ucd<end>"
    both = trained(tokenizer, Conversation(LONG), roles=["system", "assistant"])[1]
    assert both == "sS<end>ba<end>dc<end>"  # nothing comes before the first token to predict it from


def test_nothing_behind_the_last_trained_turn_is_computed(tokenizer: PreTrainedTokenizerBase) -> None:
    said = [*LONG[:3], {"role": "user", "content": "never answered"}]
    assert trained(tokenizer, Conversation(said))[0] == "<start>sS<end><start>uab<end><start>aba<end>"


def test_what_a_template_puts_after_the_end_of_turn_is_not_trained(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = tokenizer.chat_template.replace("'<end>' }}", "'<end>\n' }}")  # type: ignore[union-attr]
    whole, said = trained(tokenizer, Conversation(turns(("user", "ab"), ("assistant", "ba"))))
    assert whole.endswith("<end>\n")
    assert said == "ba<end>"


def test_tools_and_calls_are_rendered_by_the_template(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = WITH_TOOLS
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    said = [*turns(("user", "q")), {"role": "assistant", "content": "", "tool_calls": [call]}, *turns(("tool", "2"))]
    said += turns(("assistant", "two"))
    whole, part = trained(tokenizer, Conversation(said, [{"name": "add"}]))
    assert whole == '[add]<start>uq<end><start>aadd{"a": 1}<end><start>t2<end><start>atwo<end>'
    assert part == 'add{"a": 1}<end>two<end>'


def thinking(*said: tuple[str, str]) -> Conversation:
    messages = turns(*said)
    for message in messages:
        if message["role"] == "assistant":
            message["reasoning_content"] = "hm"
    return Conversation(messages)


def test_a_template_that_drops_earlier_reasoning_is_refused_or_trains_turns_apart(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    tokenizer.chat_template = FORGETFUL
    conversation = thinking(("user", "ab"), ("assistant", "ba"), ("user", "cd"), ("assistant", "dc"))
    with pytest.raises(DataError, match=r"^f:1: .*not prefix-preserving.*Set data.turns to 'each' or 'last'"):
        trained(tokenizer, conversation)
    whole, said = trained(tokenizer, conversation, turns="last")
    assert whole == "<start>uab<end><start>aba<end><start>ucd<end><start>a(hm)dc<end>"
    assert said == "(hm)dc<end>"
    apart = renderer(tokenizer, turns="each").render(conversation, "f:1")
    assert [tokenizer.decode(each.token_ids_T) for each in apart] == ["<start>uab<end><start>a(hm)ba<end>", whole]
    assert [tokenizer.decode(each.token_ids_T[each.trained_T]) for each in apart] == ["(hm)ba<end>", said]


def test_a_template_that_rewrites_even_the_prompt_of_the_last_turn_is_refused(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    tokenizer.chat_template = "{{ messages | length }}" + str(tokenizer.chat_template)
    with pytest.raises(DataError, match="its own prompt included"):
        trained(tokenizer, Conversation(turns(("user", "ab"), ("assistant", "ba"))), turns="last")


def test_what_a_template_raises_is_said(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(DataError, match=r"^f:1: the chat template refuses the first 5 messages: roles must alternate"):
        trained(tokenizer, Conversation(LONG))


def test_a_model_without_a_chat_template_takes_texts_and_refuses_messages(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = None
    assert trained(tokenizer, Text("ab", "ba")) == ("abba<end>", "ba<end>")
    with pytest.raises(DataError, match=r"no chat template. Use `prompt` and `completion` as texts"):
        trained(tokenizer, Conversation(LONG))


def test_tokens_keep_their_mask_and_must_belong_to_the_model(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = tokenizer("abc")["input_ids"]
    assert trained(tokenizer, Tokens(ids, [0, 1, 0])) == ("abc", "b")
    with pytest.raises(DataError, match="outside of the model's 259"):
        trained(tokenizer, Tokens([1, 259], [0, 1]))


def test_turns_whose_thoughts_a_template_leaves_out_are_counted(tokenizer: PreTrainedTokenizerBase) -> None:
    thought: Message = {"role": "assistant", "content": "ba", "reasoning_content": "\nhm\n"}
    example = Conversation([*turns(("user", "ab")), thought])
    for template, count in ((None, 1.0), (FORGETFUL, 0.0), (GPT_OSS, 0.0)):
        tokenizer.chat_template = template or tokenizer.chat_template
        with_thoughts = renderer(tokenizer)
        with_thoughts.render(example, "f:1")
        assert with_thoughts.take_counts()["batch/unthinking"] == count
        with_thoughts.render(Conversation(turns(("user", "ab"), ("assistant", "ba"))), "f:1")
        assert with_thoughts.take_counts()["batch/unthinking"] == 0.0


def test_thoughts_before_calls_take_no_room_of_what_is_said(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = GPT_OSS
    call = {"type": "function", "function": {"name": "add", "arguments": {}}}
    for content, said in (("", "(hm)"), ("so", "so")):
        message = {"role": "assistant", "content": content, "reasoning_content": "hm", "tool_calls": [call]}
        assert trained(tokenizer, Conversation([*turns(("user", "ab")), message]))[1] == f"{said}<end>"


def test_the_date_that_a_template_tells_is_that_of_the_run(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = "{{ strftime_now('%d %b %Y') }}" + str(tokenizer.chat_template)
    assert trained(tokenizer, Conversation(LONG)) == (f"28 Feb 2026{LONG_TEXT}", "ba<end>dc<end>")


def test_long_examples_are_cut_or_dropped_and_counted(tokenizer: PreTrainedTokenizerBase) -> None:
    example = Conversation(turns(("user", "abc"), ("assistant", "cba")))  # eight tokens of prompt
    cutting = renderer(tokenizer, seq_len=9)
    [sequence] = cutting.render(example, "f:1")
    assert len(sequence.token_ids_T) == 9
    assert tokenizer.decode(sequence.token_ids_T[sequence.trained_T]) == "c"
    assert cutting.take_counts() == {"batch/cut": 1.0, "batch/dropped": 0.0, "batch/unthinking": 0.0}
    assert set(cutting.take_counts().values()) == {0.0}
    dropping = renderer(tokenizer, seq_len=9, too_long="drop")
    assert dropping.render(example, "f:1") == []
    assert dropping.take_counts()["batch/dropped"] == 1.0
    nothing_left = renderer(tokenizer, seq_len=8)
    assert nothing_left.render(Conversation(turns(("user", "abcdef"), ("assistant", "x"))), "f:1") == []
    assert nothing_left.take_counts() == {"batch/cut": 0.0, "batch/dropped": 1.0, "batch/unthinking": 0.0}


def merging_tokenizer() -> PreTrainedTokenizerFast:
    """Two equal letters are one token, so that a token can reach across the end of a prompt."""
    letters = string.ascii_lowercase + "|"
    pairs = [(letter, letter) for letter in letters]
    vocabulary = {text: index for index, text in enumerate([*letters, *(a + b for a, b in pairs)])}
    fast = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE(vocab=vocabulary, merges=pairs)), eos_token="|")
    fast.chat_template = (
        "{% for message in messages %}{{ message['content'] + ('x|' if message['role'] == 'assistant' else 'q') }}"
        "{% endfor %}"
    )
    return fast


def test_no_token_reaches_from_a_prompt_into_what_is_said() -> None:
    tokenizer = merging_tokenizer()
    [sequence] = renderer(tokenizer).render(Conversation(turns(("user", "aab"), ("assistant", "qb"))), "f:1")
    assert tokenizer.convert_ids_to_tokens(sequence.token_ids_T) == ["aa", "b", "q", "q", "b", "x", "|"]
    assert sequence.trained_T.tolist() == [False] * 3 + [True] * 4


texts = st.text(alphabet="ab<>é\n 😀", max_size=6)


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), texts), min_size=1, max_size=5), texts)
def test_the_mask_is_what_the_parts_of_the_text_say(said: list[tuple[str, str]], first: str) -> None:
    """The tiny template has no surprises, so the expected text and mask can be written down piece by piece."""
    tokenizer = tiny_tokenizer()
    said = [("user", first), *said, ("assistant", "!")]
    ids: list[int] = []
    mask: list[int] = []
    for role, content in said:
        header = tokenizer(f"<start>{role[0]}")["input_ids"]
        spoken = tokenizer(f"{content}<end>")["input_ids"]
        ids += header + spoken
        mask += [0] * len(header) + [int(role == "assistant")] * len(spoken)
    [(token_ids_T, mask_T)] = renderer(tokenizer).tokens(Conversation(turns(*said)), "f:1")
    np.testing.assert_array_equal(token_ids_T, ids)
    np.testing.assert_array_equal(mask_T, mask)
