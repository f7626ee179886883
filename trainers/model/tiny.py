"""Make a tiny Qwen3 with a byte-level tokenizer: `python -m trainers.model.tiny DIR --seed N`.

It is a real model in the Hugging Face layout, small enough to train and serve on a laptop's CPU, so the demo and the
tests need no download. One token is one byte of UTF-8; three more tokens frame the turns:

    <start>s{system}<end><start>u{user}<end><start>a{assistant}<end>

With `--tools` it has the tokens and the chat template of its family instead (`tiny_tools.py`). The weights are random:
it speaks no language until it is trained.
"""

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

PAD, START, END = "<pad>", "<start>", "<end>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<start>' + message['role'][0] + message['content'] + '<end>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start>a' }}{% endif %}"
)
"""A turn costs three tokens besides its content. Rendering a conversation is a prefix of rendering a longer one."""


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, then the three special tokens: 259 in all."""
    vocabulary = {symbol: index for index, symbol in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([PAD, START, END])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, clean_up_tokenization_spaces=False
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def tiny_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    """About 0.9 million parameters."""
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=4096,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 100.0,
        },  # short texts: sharp positions are learned sooner
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def write_tiny_model(directory: Path, seed: int = 0, *, tools: bool = False) -> None:
    """Write model and tokenizer to `directory`; the same seed gives the same weights."""
    tokenizer = _tool_tokenizer() if tools else tiny_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(tiny_config(tokenizer))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _tool_tokenizer() -> PreTrainedTokenizerFast:
    from trainers.model.tiny_tools import tool_tokenizer  # a second of imports, for those who want it

    return tool_tokenizer()


def main() -> None:
    """Parse the command line and write the model."""
    parser = argparse.ArgumentParser(prog="python -m trainers.model.tiny", description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tools", action="store_true", help="with the chat format of its family, which knows tools")
    arguments = parser.parse_args()
    write_tiny_model(arguments.directory, arguments.seed, tools=arguments.tools)
    size_bytes = sum(file.stat().st_size for file in arguments.directory.iterdir())
    print(f"wrote {arguments.directory} ({size_bytes / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
