"""Conversations from a JSONL file as training sequences: the loss is on what the assistant says, and on nothing else.

Which tokens are the assistant's is found by rendering the conversation turn by turn through the model's own chat
template. That is exact as long as rendering is prefix-preserving, which is checked for every turn; a template that
rewrites earlier turns (drops old reasoning, say) is refused, because any mask for it would be a guess.
"""

import functools
import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from transformers import PreTrainedTokenizerBase

from environments.types import Message
from trainers.errors import DataError
from trainers.packing import TrainingSequence, training_sequence


class Conversation(msgspec.Struct, frozen=True):
    """One line of the file. Other keys on the line are ignored."""

    messages: list[Message]


def read_conversations(path: Path) -> list[Conversation]:
    """Read a JSONL file whole. Raises DataError naming the line."""
    conversations = []
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    conversations.append(_parse(line, f"{path}:{number}"))
    except OSError as error:
        raise DataError(f"data.path: cannot read {path}: {error.strerror}") from None
    if not conversations:
        raise DataError(f"data.path: {path} has no conversations")
    return conversations


def render(conversation: Conversation, tokenizer: PreTrainedTokenizerBase, seq_len: int) -> TrainingSequence:
    """Tokens of a conversation, trained where the assistant speaks, up to and with its end-of-turn token.

    What a template puts after that token (a line break, often) is never sampled by a policy, so it is not trained.
    Raises DataError when the chat template is not prefix-preserving.
    """
    messages = [msgspec.to_builtins(message) for message in conversation.messages]
    token_ids: list[int] = []
    trained: list[int] = []
    for index, message in enumerate(messages):
        spoken = message["role"] == "assistant"
        if spoken:
            prompt = _continuation(tokenizer, messages[:index], token_ids, add_generation_prompt=True)
            token_ids += prompt
            trained += [0] * len(prompt)
        turn = _continuation(tokenizer, messages[: index + 1], token_ids, add_generation_prompt=False)
        token_ids += turn
        said = _up_to_end(turn, tokenizer.eos_token_id) if spoken else 0
        trained += [1] * said + [0] * (len(turn) - said)
    return training_sequence(np.array(token_ids, np.int64), np.array(trained, np.uint8), seq_len)


def batch_indices(count: int, batch_size: int, step: int, seed: int) -> list[int]:
    """Which of `count` conversations step `step` trains on: whole shuffled passes, one after another.

    A function of its arguments alone, so a resumed run needs no stored position.
    """
    first = step * batch_size
    positions = range(first, first + batch_size)
    orders = {epoch: _order(count, seed, epoch) for epoch in {position // count for position in positions}}
    return [orders[position // count][position % count] for position in positions]


def _parse(line: bytes, where: str) -> Conversation:
    try:
        conversation = msgspec.json.decode(line, type=Conversation)
    except msgspec.DecodeError as error:
        raise DataError(f"{where}: {error}") from None
    roles = [message.role for message in conversation.messages]
    if "assistant" not in roles or roles[0] == "assistant":
        raise DataError(f"{where}: needs an assistant message, and another one before it; the roles are {roles}")
    return conversation


def _continuation(
    tokenizer: PreTrainedTokenizerBase, messages: list[Any], before: list[int], *, add_generation_prompt: bool
) -> list[int]:
    """Tokens that rendering `messages` adds to `before`."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt)
    token_ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    if token_ids[: len(before)] != before:
        reason = "rendering one more turn changes the turns before it, so assistant tokens cannot be told apart"
        raise DataError(
            f"the chat template is not prefix-preserving: {reason}. Use single-turn data or another template."
        )
    return token_ids[len(before) :]


def _up_to_end(turn: list[int], end: int | None) -> int:
    """How many tokens of a turn come up to and with its last `end`; all of them when there is none."""
    return len(turn) - turn[::-1].index(end) if end in turn else len(turn)


@functools.lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> list[int]:
    order = list(range(count))
    random.Random(f"{seed}-{epoch}").shuffle(order)
    return order
