"""Two texts beside each other: which of the words are only in one of them."""

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import NamedTuple

from frontend.conversation import JsonObject, spoken

MOST_WORDS = 4_000
"""Of a text: the time of a comparison grows with the product of both. Longer ones are shown without marks."""
_WORD = re.compile(r"\w+|\s+|[^\w\s]")


class Piece(NamedTuple):
    """A stretch of a text."""

    text: str
    is_own: bool = False
    """Whether the other text lacks it."""


class Compared(NamedTuple):
    """A message beside one of another conversation."""

    message: JsonObject
    pieces: list[Piece]
    """Its text; empty: it is compared with nothing."""


def pieces(one: str, other: str) -> tuple[list[Piece], list[Piece]] | None:
    """Both texts in pieces, word by word; None: they are too long to compare."""
    mine, theirs = _WORD.findall(one), _WORD.findall(other)
    if max(len(mine), len(theirs)) > MOST_WORDS:
        return None
    blocks = SequenceMatcher(None, mine, theirs).get_matching_blocks()
    return (
        list(_cut(mine, [(block.a, block.size) for block in blocks])),
        list(_cut(theirs, [(block.b, block.size) for block in blocks])),
    )


def compared(one: Sequence[JsonObject], other: Sequence[JsonObject]) -> tuple[list[Compared], list[Compared]]:
    """Two conversations: each reply of the policy in one beside that of the same number in the other."""
    marks: dict[int, list[Piece]] = {}
    for mine, theirs in zip_longest(_replies(one), _replies(other)):
        if mine is not None and theirs is not None:
            found = pieces(spoken(mine).text, spoken(theirs).text)
            if found is not None:
                marks[id(mine)], marks[id(theirs)] = found
    return (
        [Compared(message, marks.get(id(message), [])) for message in one],
        [Compared(message, marks.get(id(message), [])) for message in other],
    )


def _replies(messages: Sequence[JsonObject]) -> Iterator[JsonObject]:
    return (message for message in messages if message.get("role") == "assistant")


def _cut(words: Sequence[str], shared: Sequence[tuple[int, int]]) -> Iterator[Piece]:
    """The words between those that both texts have are a text's own."""
    at = 0
    for begin, size in shared:
        if own := "".join(words[at:begin]):
            yield Piece(own, is_own=True)
        if both := "".join(words[begin : begin + size]):
            yield Piece(both)
        at = begin + size
