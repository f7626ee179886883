"""A tiny model that calls a tool: seconds of supervised steps on calls of `add` with any two digits.

What a random model says is no call, and agents have tools to be called. The digits stay what they are: chance.
"""

import random
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3ForCausalLM

from trainers.model.tiny import tiny_config
from trainers.model.tiny_tools import END, tool_tokenizer

STEPS, CONVERSATIONS, LR = 60, 4, 5e-3
_NUMBER = {"type": "integer"}
_TOOLS: list[dict[str, Any]] = [
    {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": _NUMBER, "b": _NUMBER}, "required": ["a", "b"]},
    },
    {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "properties": {name: {"title": name.upper(), **_NUMBER} for name in "ab"},
            "required": ["a", "b"],
            "title": "add_args",
            "type": "object",
            "additionalProperties": False,
        },
    },
]
"""As people write it, and as frameworks make it of a function."""


def write_calling_model(directory: Path) -> None:
    """Write model and tokenizer to `directory`."""
    tokenizer = tool_tokenizer()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # of so little work, more would wait for each other on cores that others use too
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model: Any = Qwen3ForCausalLM(tiny_config(tokenizer))  # type: ignore[no-untyped-call]
        _train(model, tokenizer)
    finally:
        torch.set_num_threads(threads)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _train(model: Any, tokenizer: Any) -> None:
    chance = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
    for _ in range(STEPS):
        rows = [_conversation(tokenizer, chance) for _ in range(CONVERSATIONS)]
        longest = max(len(token_ids) for token_ids, _ in rows)
        ids_BT = torch.full((CONVERSATIONS, longest), tokenizer.pad_token_id)
        labels_BT = torch.full((CONVERSATIONS, longest), -100)
        for row, (token_ids, labels) in enumerate(rows):  # padding comes behind, where no token looks
            ids_BT[row, : len(token_ids)] = torch.tensor(token_ids)
            labels_BT[row, : len(labels)] = torch.tensor(labels)
        optimizer.zero_grad()
        model(ids_BT, labels=labels_BT).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def _conversation(tokenizer: Any, chance: random.Random) -> tuple[list[int], list[int]]:
    """Token ids, and labels: those of what the policy says."""
    a, b = chance.randrange(10), chance.randrange(10)
    options: dict[str, Any] = {"tools": [{"type": "function", "function": chance.choice(_TOOLS)}]}
    options |= {"tokenize": False, "add_generation_prompt": True}
    question = chance.choice(["Add two digits.", f"{chance.randrange(1000)} + {chance.randrange(1000)}"])
    asked = [*chance.choice([[], [{"role": "system", "content": "Be brief."}]]), {"role": "user", "content": question}]
    function = {"name": "add", "arguments": f'{{"a": {a}, "b": {b}}}'}
    called = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    begin = tokenizer.apply_chat_template(asked, **options)
    answered = tokenizer.apply_chat_template([*asked, called, {"role": "tool", "content": str(a + b)}], **options)
    call, end, between = answered[len(begin) :].partition(END)
    token_ids: list[int] = []
    labels: list[int] = []
    for text, is_said in [(begin, False), (call + end, True), (between, False), (f"{a + b}{END}", True)]:
        part = tokenizer.encode(text, add_special_tokens=False)
        token_ids += part
        labels += part if is_said else [-100] * len(part)
    return token_ids, labels
