"""A model's tokenizer as renderers want it, without transformers; and text that cannot pose as a control token.

Texts of people, tools and models may contain `<|im_end|>`. It must reach the policy as those characters, never as the
token that ends a turn. So a mark is put inside of it before a renderer sees the text, and encoding begins anew at each
mark and leaves it out.

Who wrote the tokenizer may be hostile, and a process that speaks with many models must not die of one.
"""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from environments.chat import files

MARK = "\ufdd0"
"""A code point that no text may contain: Unicode gives it to nobody."""
_MAX_CONTROLS = 2 * 2**20
"""Characters of all control tokens together. Models with a token for every sound have half of it; looking for more
takes hundreds of megabytes.
"""


@contextmanager
def _without_panics() -> Iterator[None]:
    """A panic of the library, such as over a regular expression that gives up, is a ValueError."""
    try:
        yield
    except BaseException as error:  # a panic is no Exception, and would end whoever did not see it coming
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"the tokenizer broke: {error}") from error


class ChatTokenizer:
    """A `tokenizer.json` and what `tokenizer_config.json` says beside it.

    Raises OSError, ValueError when made, also for files that are too large for one, or no files; ``closed`` is as for
    `files.read`. Whatever encodes or decodes raises ValueError where the tokenizer breaks over a text.
    """

    unk_token_id = None
    """Nothing is unknown: `convert_tokens_to_ids` says None then."""

    def __init__(self, directory: Path, closed: Iterable[Path] = ()) -> None:
        self.name_or_path = str(directory)
        found = files.read(directory, closed)
        try:
            self._tokenizer = _loaded(found.tokenizer)
            described = msgspec.convert(json.loads(found.config), dict[str, Any])
        except Exception as error:  # tokenizers raises no class of its own
            raise ValueError(f"{directory} holds no tokenizer: {error}") from error
        added = self._tokenizer.get_added_tokens_decoder().values()
        self.all_special_tokens = [token.content for token in added if token.special]
        self.eos_token_id = self.convert_tokens_to_ids(_content(described.get("eos_token")))
        self.controls = frozenset(token.content for token in added if len(token.content) > 1)
        """What is one token and no text: the ends of turns, marks around calls and reasoning."""
        if sum(map(len, self.controls)) > _MAX_CONTROLS:
            raise ValueError(f"{directory} holds a tokenizer whose control tokens have over {_MAX_CONTROLS} characters")
        longest_first = sorted(self.controls, key=len, reverse=True)
        self._looks_like_one = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    @_without_panics()
    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """The tokens of a text; those of a marked text are of its characters alone."""
        parts = text.split(MARK) if MARK in text else [text]
        # A batch lets other threads run meanwhile, which a single text does not.
        encoded = self._tokenizer.encode_batch(parts, add_special_tokens=add_special_tokens)
        return [token for each in encoded for token in each.ids]

    @_without_panics()
    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False, **_options: Any) -> str:
        """The text of tokens."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def convert_tokens_to_ids(self, token: str | None) -> int | None:
        """The number of one token; None: there is no such token."""
        return None if token is None else self._tokenizer.token_to_id(token)

    def marked(self, value: Any) -> Any:
        """The same texts, wherever in messages they are, with a mark inside of whatever looks like a control token."""
        if isinstance(value, str):
            value = value.replace(MARK, "\ufffd")
            if self._looks_like_one is None:
                return value
            return self._looks_like_one.sub(lambda found: f"{found[0][0]}{MARK}{found[0][1:]}", value)
        if isinstance(value, list | tuple):
            return [self.marked(each) for each in value]
        if isinstance(value, dict):
            return {self.marked(key): self.marked(each) for key, each in value.items()}
        if isinstance(value, msgspec.Struct):
            return self.marked(msgspec.to_builtins(value))
        return value


@_without_panics()
def _loaded(content: bytes) -> Tokenizer:
    """As its writer made it, but that a text has as many tokens as it has: none are cut off, and none are filled up."""
    tokenizer = Tokenizer.from_buffer(content)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _content(token: Any) -> str | None:
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None
