"""Examples as training sequences: the model's own chat template says which tokens each role has, and no search does.

A turn that is trained begins where rendering everything before it ends (for the assistant with its generation prompt:
what it would have been given) and ends where rendering it too ends. That is exact as long as both renderings are
prefixes of the whole, which is checked for every turn. A template that rewrites earlier turns, by dropping their
reasoning for example, is refused, because any mask for it would be a guess; unless every turn is trained apart, or only
the last one, since a turn at the end is always rendered behind its own prompt.

Shapes: T tokens of one sequence.
"""

from collections.abc import Sequence
from datetime import date

import numpy as np
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from trainers.data.examples import Conversation, Example, Message, Text, Tokens
from trainers.errors import DataError
from trainers.packing import TrainingSequence, training_sequence
from trainers.run_config.data import DataConfig

Span = tuple[int, int]
"""Characters of a rendered text that are trained, from and up to."""
Rendered = tuple[np.ndarray, np.ndarray]
"""Token ids, int64 [T], and loss mask, uint8 [T]."""


class Renderer:
    """Renders examples for one tokenizer, and counts what was too long.

    `today` is the date for templates that tell it: one for all, since a turn that is rendered past midnight would not
    be what the conversation begins with.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, config: DataConfig, seq_len: int, today: date) -> None:
        self._tokenizer = tokenizer
        self._config = config
        self._seq_len = seq_len
        self._today = today
        self._cut = self._dropped = self._unthinking = 0

    def render(self, example: Example, where: str) -> list[TrainingSequence]:
        """Sequences of at most `seq_len` tokens: one for each turn with `data.turns` as 'each', else one.

        What is dropped is missing. Raises DataError naming `where`.
        """
        kept = []
        for token_ids_T, trained_T in self.tokens(example, where):
            is_long = len(token_ids_T) > self._seq_len
            sequence = training_sequence(token_ids_T, trained_T, self._seq_len)
            if (is_long and self._config.too_long == "drop") or not sequence.trained_T.any():
                self._dropped += 1
            else:
                self._cut += is_long
                kept.append(sequence)
        return kept

    def tokens(self, example: Example, where: str) -> list[Rendered]:
        """All tokens and their loss mask, however long. Raises DataError naming `where`."""
        if isinstance(example, Conversation):
            return self._conversation(example, where)
        return [self._text(example) if isinstance(example, Text) else self._as_they_are(example, where)]

    def take_counts(self) -> dict[str, float]:
        """How many sequences were cut and dropped since the last call, and of how many turns that are trained the
        template left out the thoughts, as metrics."""
        counts = {
            "batch/cut": float(self._cut),
            "batch/dropped": float(self._dropped),
            "batch/unthinking": float(self._unthinking),
        }
        self._cut = self._dropped = self._unthinking = 0
        return counts

    def _conversation(self, conversation: Conversation, where: str) -> list[Rendered]:
        if not self._tokenizer.chat_template:
            fix = "Use `prompt` and `completion` as texts, or a model with a template"
            raise DataError(f"{where}: has messages, and the model has no chat template. {fix}.")
        messages = conversation.messages
        trained = [
            index
            for index in range(conversation.prompt_messages, len(messages))
            if messages[index]["role"] in self._config.roles
        ]
        if self._config.turns == "all":
            return [self._turns(conversation, trained, where)]
        chosen = trained[-1:] if self._config.turns == "last" else trained
        return [self._turns(conversation, [index], where) for index in chosen]

    def _turns(self, conversation: Conversation, trained: Sequence[int], where: str) -> Rendered:
        """A conversation up to the last of the turns that are trained in it."""
        messages = conversation.messages
        whole = self._template(conversation, trained[-1] + 1, where)
        spans: list[Span] = []
        for index in trained:
            is_asked = messages[index]["role"] == "assistant"
            before = self._template(conversation, index, where, add_generation_prompt=is_asked) if index else ""
            with_it = self._template(conversation, index + 1, where)
            follows = not spans or len(before) >= spans[-1][1]
            if not (follows and whole.startswith(with_it) and with_it.startswith(before)):
                raise self._rewritten(where)
            spans.append((len(before), len(with_it)))
            self._unthinking += _thoughts(messages[index]).strip() not in with_it[len(before) :]
        return self._tokenize(whole, spans)

    def _template(
        self, conversation: Conversation, count: int, where: str, *, add_generation_prompt: bool = False
    ) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                [_asked_for(message) for message in conversation.messages[:count]],
                tools=conversation.tools,  # type: ignore[arg-type]
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                strftime_now=self._today.strftime,
            )
        except (TemplateError, TypeError) as error:
            raise DataError(f"{where}: the chat template refuses the first {count} messages: {error}") from None
        assert isinstance(text, str)
        return text

    def _rewritten(self, where: str) -> DataError:
        reason = "the chat template is not prefix-preserving: rendering a turn changes what is before it"
        if self._config.turns == "all":
            return DataError(f"{where}: {reason}. Set data.turns to 'each' or 'last', or use another template.")
        return DataError(f"{where}: {reason}, its own prompt included. Use another template, or texts.")

    def _tokenize(self, text: str, spans: Sequence[Span]) -> Rendered:
        """Tokens of a rendered text, trained inside of the spans up to and with the last end-of-turn token of each.

        What a template puts after that token (a line break, often) is never sampled by a policy, so it is not trained.
        """
        cuts = [at for span in spans for at in span]
        pieces = self._whole(text, cuts) or self._piecewise(text, cuts)
        mask_T = np.zeros(sum(map(len, pieces)), np.uint8)
        at = 0
        for number, piece in enumerate(pieces):
            if number % 2:  # pieces alternate: what is before a span, the span, what is before the next
                mask_T[at : at + _up_to_end(piece, self._tokenizer.eos_token_id)] = 1
            at += len(piece)
        return np.concatenate([np.array(piece, np.int64) for piece in pieces]), mask_T

    def _whole(self, text: str, cuts: Sequence[int]) -> list[list[int]] | None:
        """The tokens of the text, in pieces; None when they cannot be told to end at the cuts."""
        if not self._tokenizer.is_fast:
            return None
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        token_ids: list[int] = encoded["input_ids"]
        starts_T, ends_T = np.array(encoded["offset_mapping"], np.int64).reshape(-1, 2).T
        firsts = np.searchsorted(starts_T, cuts)
        if any(first and ends_T[first - 1] > cut for first, cut in zip(firsts, cuts, strict=True)):
            return None
        return [token_ids[a:b] for a, b in zip([0, *firsts], [*firsts, len(token_ids)], strict=True)]

    def _piecewise(self, text: str, cuts: Sequence[int]) -> list[list[int]]:
        """Each piece on its own: a policy goes on behind the tokens of its prompt, so none reaches across."""
        ends = [*cuts, len(text)]
        pieces = [text[a:b] for a, b in zip([0, *cuts], ends, strict=True)]
        return [self._tokenizer(piece, add_special_tokens=False)["input_ids"] for piece in pieces]

    def _text(self, text: Text) -> Rendered:
        end = self._tokenizer.eos_token_id
        prompt: list[int] = self._tokenizer(text.prompt)["input_ids"]  # with what the tokenizer puts at the beginning
        completion: list[int] = self._tokenizer(text.completion, add_special_tokens=False)["input_ids"]
        completion = completion + ([] if end is None else [end])
        mask_T = np.repeat(np.array([0, 1], np.uint8), [len(prompt), len(completion)])
        return np.array([*prompt, *completion], np.int64), mask_T

    def _as_they_are(self, tokens: Tokens, where: str) -> Rendered:
        token_ids_T = np.array(tokens.token_ids, np.int64)
        if token_ids_T.min() < 0 or token_ids_T.max() >= len(self._tokenizer):
            reason = f"has token ids outside of the model's {len(self._tokenizer)}"
            raise DataError(f"{where}: {reason}. Tokens belong to the model that wrote them.")
        return token_ids_T, np.array(tokens.loss_mask, np.uint8)


def _thoughts(message: Message) -> str:
    thoughts = message.get("reasoning_content")
    return thoughts if isinstance(thoughts, str) else ""


def _asked_for(message: Message) -> Message:
    """A message as templates ask for it: that of GPT-OSS for thoughts by the name `thinking`, and not beside a content
    where there are calls, before which it has room for one of them."""
    if not _thoughts(message) or "thinking" in message or (message.get("tool_calls") and message["content"]):
        return message
    return message | {"thinking": _thoughts(message)}


def _up_to_end(turn: list[int], end: int | None) -> int:
    """How many tokens of a turn come up to and with its last `end`; all of them when there is none."""
    return len(turn) - turn[::-1].index(end) if end in turn else len(turn)
