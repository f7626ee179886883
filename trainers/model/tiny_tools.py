"""The tiny model in the format of its family: a chat template with tools, and a tokenizer that is short on it.

The template writes what Qwen3's renderer of `renderers` writes, from which it takes the frame around tools; so what a
real Qwen3 does with tools, this one does on a laptop. Bytes that the frame repeats are joined to longer tokens: the
tools of a problem cost some hundred tokens, not a thousand. Digits stay single.
"""

import json
from typing import Any

from renderers import Qwen3RendererConfig, create_renderer
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

PAD, END = "<|endoftext|>", "<|im_end|>"
CONTROLS = (PAD, "<|im_start|>", END)
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
VOCABULARY = 640
"""Bytes, joined bytes, and the tokens above."""
_SLOT = {"slot": 0}


def tool_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer with its template; the same every time."""
    before, between, after = _frame()
    scaffold = [
        before,
        after,
        "\nassistant\n",
        "\nuser\n",
        "system\n",
        '{"type": "function", "function": {"name": "", "description": "", "parameters": {"type": "object", ',
        '"properties": {"": {"type": "integer"}, "": {"type": "string"}}, "required": ["", ""]}}}',
        '\n{"name": "", "arguments": {"": , "": }}\n',
    ]
    tokenizer = _bytes_and(scaffold)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, clean_up_tokenization_spaces=False
    )
    fast.chat_template = _template(before, between, after)
    return fast


def _bytes_and(scaffold: list[str]) -> Tokenizer:
    """A byte-level tokenizer; joined are bytes inside of words of the scaffold."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = ByteLevelDecoder()
    room = VOCABULARY - len(CONTROLS) - len(MARKS)
    trainer = BpeTrainer(
        vocab_size=room, initial_alphabet=sorted(ByteLevel.alphabet()), show_progress=False, special_tokens=[]
    )
    tokenizer.train_from_iterator([text for text in scaffold for _ in range(2)], trainer)
    tokenizer.add_special_tokens(list(CONTROLS))
    # Like Qwen's: marks are tokens of their own, and stay in decoded text.
    tokenizer.add_tokens(list(MARKS))
    return tokenizer


def _frame() -> tuple[str, str, str]:
    """What stands before the tools, between two of them, and behind, in a system message."""
    tokenizer = _WithoutModel(_bytes_and([]))
    renderer = create_renderer(tokenizer, Qwen3RendererConfig())
    text = tokenizer.decode(
        renderer.render_ids([{"role": "user", "content": ""}], tools=[_SLOT, _SLOT])  # type: ignore[typeddict-item]
    )
    slot = json.dumps(_SLOT)
    before, between, after = text.split(slot)
    return before.removeprefix("<|im_start|>system\n"), between, after.partition(END)[0]


class _WithoutModel:
    """What a renderer needs of a tokenizer."""

    name_or_path = "tiny"
    unk_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, **_options: Any) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: list[int], **_options: Any) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False))

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)


def _template(before: str, between: str, after: str) -> str:
    said = "'<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n'"
    return (
        "{%- set asked = messages[0].content if messages[0].role == 'system' else '' %}"
        "{%- if tools %}"
        "{{- '<|im_start|>system\\n' + (asked + '\\n\\n' if asked else '') + " + json.dumps(before) + " }}"
        "{%- for tool in tools %}"
        "{{- (" + json.dumps(between) + " if not loop.first else '') + (tool | tojson) }}"
        "{%- endfor %}"
        "{{- " + json.dumps(after) + " + '<|im_end|>\\n' }}"
        "{%- elif asked %}{{- '<|im_start|>system\\n' + asked + '<|im_end|>\\n' }}{%- endif %}"
        "{%- for message in messages %}"
        "{%- if message.role == 'assistant' %}"
        "{{- '<|im_start|>assistant\\n' + (message.content or '') }}"
        "{%- for call in message.tool_calls or [] %}"
        "{{- '\\n' if message.content or not loop.first else '' }}"
        '{{- \'<tool_call>\\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
        "{{- call.function.arguments if call.function.arguments is string else (call.function.arguments | tojson) }}"
        "{{- '}\\n</tool_call>' }}"
        "{%- endfor %}"
        "{{- '<|im_end|>\\n' }}"
        "{%- elif message.role == 'tool' %}"
        "{{- '<|im_start|>user' if loop.first or messages[loop.index0 - 1].role != 'tool' else '' }}"
        "{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}"
        "{{- '<|im_end|>\\n' if loop.last or messages[loop.index0 + 1].role != 'tool' else '' }}"
        "{%- elif message.role != 'system' or not loop.first %}{{- " + said + " }}"
        "{%- endif %}"
        "{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
    )
