"""SFT data: exactly the assistant's tokens are trained, and what cannot be told apart is refused."""

from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from environments.types import Message
from tests.trainers.support import write_conversations
from trainers.conversations import Conversation, batch_indices, read_conversations, render
from trainers.errors import DataError
from trainers.tiny_model import tiny_tokenizer


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerBase:
    return tiny_tokenizer()


def conversation(*turns: tuple[str, str]) -> Conversation:
    return Conversation(messages=[Message(role, content) for role, content in turns])  # type: ignore[arg-type]


def test_only_the_assistants_tokens_are_trained_with_the_end_of_turn(tokenizer: PreTrainedTokenizerBase) -> None:
    turns = [("system", "S"), ("user", "ab"), ("assistant", "ba"), ("user", "cd"), ("assistant", "dc")]
    sequence = render(conversation(*turns), tokenizer, 100)
    assert tokenizer.decode(sequence.token_ids_T) == (
        "<start>sS<end><start>uab<end><start>aba<end><start>ucd<end><start>adc<end>"
    )
    assert tokenizer.decode(sequence.token_ids_T[sequence.trained_T]) == "ba<end>dc<end>"


def test_long_conversations_are_cut(tokenizer: PreTrainedTokenizerBase) -> None:
    sequence = render(conversation(("user", "abc"), ("assistant", "cba")), tokenizer, 9)
    assert len(sequence.token_ids_T) == 9
    assert tokenizer.decode(sequence.token_ids_T[sequence.trained_T]) == "c"


def test_what_a_template_puts_after_the_end_of_turn_is_not_trained(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = tokenizer.chat_template.replace("'<end>' }}", "'<end>\n' }}")  # type: ignore[union-attr]
    sequence = render(conversation(("user", "ab"), ("assistant", "ba")), tokenizer, 100)
    assert tokenizer.decode(sequence.token_ids_T).endswith("<end>\n")
    assert tokenizer.decode(sequence.token_ids_T[sequence.trained_T]) == "ba<end>"


def test_a_template_that_rewrites_earlier_turns_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = "{{ messages | length }}" + str(tokenizer.chat_template)
    with pytest.raises(DataError, match="not prefix-preserving"):
        render(conversation(("user", "ab"), ("assistant", "ba")), tokenizer, 100)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"messages": [{"role": "user", "content": "x"}]}', "needs an assistant"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "needs an assistant"),
        ('{"messages": [{"role": "king", "content": "x"}]}', "king"),
        ("{", ":2"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "data.jsonl"
    good = '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}'
    path.write_text(f"{good}\n{line}\n")
    with pytest.raises(DataError, match=complaint) as caught:
        read_conversations(path)
    assert f"{path}:2" in str(caught.value)


def test_a_missing_or_empty_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read"):
        read_conversations(tmp_path / "missing")
    (tmp_path / "empty").touch()
    with pytest.raises(DataError, match="no conversations"):
        read_conversations(tmp_path / "empty")


def test_solved_problems_of_an_environment_are_training_data(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    write_conversations(tmp_path / "data.jsonl", count=3)
    read = read_conversations(tmp_path / "data.jsonl")
    assert len(read) == 3
    answer = read[0].messages[-1].content
    sequence = render(read[0], tokenizer, 100)
    assert tokenizer.decode(sequence.token_ids_T[sequence.trained_T]) == answer + "<end>"


def test_every_pass_sees_every_conversation_once_in_an_order_of_its_own() -> None:
    indices = np.concatenate([batch_indices(10, 4, step, seed=1) for step in range(5)])
    first, second = indices[:10], indices[10:]
    assert sorted(first) == sorted(second) == list(range(10))
    assert list(first) != list(second)
    assert batch_indices(10, 4, 3, seed=1) == list(indices[12:16])
    assert batch_indices(10, 4, 3, seed=2) != batch_indices(10, 4, 3, seed=1)


def test_a_batch_may_be_larger_than_the_data() -> None:
    assert sorted(batch_indices(2, 5, 0, seed=0)) in ([0, 0, 0, 1, 1], [0, 0, 1, 1, 1])
