"""The tiny model loads like any other Hugging Face model."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from trainers.model.tiny import write_tiny_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    directory = tmp_path_factory.mktemp("model")
    write_tiny_model(directory)
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(directory)
    return tokenizer


def test_it_has_fewer_than_two_million_parameters(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert sum(parameter.numel() for parameter in model.parameters()) < 2_000_000


def test_the_seed_decides_the_weights(tmp_path: Path) -> None:
    for name, seed in [("a", 1), ("b", 1), ("c", 2)]:
        write_tiny_model(tmp_path / name, seed)
    first, same, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert first == same != other
    with safe_open(tmp_path / "a" / "model.safetensors", "pt") as tensors:
        assert "model.embed_tokens.weight" in tensors.keys()  # noqa: SIM118 - not a dict


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_survives_tokens_one_per_byte(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    plain = text.replace("<", "")  # no special token
    ids = tokenizer.encode(plain)
    assert len(ids) == len(plain.encode())
    assert tokenizer.decode(ids) == plain


def test_a_turn_costs_three_tokens_and_ends_with_the_end_token(tokenizer: PreTrainedTokenizerBase) -> None:
    messages = [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "cba"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == "<start>uabc<end><start>acba<end>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == 12
    assert ids[-1] == tokenizer.eos_token_id
    prompt = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, tokenize=False)
    assert text.startswith(prompt)
