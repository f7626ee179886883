"""Two texts beside each other: which of the words are only in one of them.

By their longest common subsequence (rapidfuzz): milliseconds whatever a policy wrote. Of difflib the worst case, which
is cubic, could keep a web process busy for minutes.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, zip_longest
from typing import NamedTuple

from rapidfuzz.distance import LCSseq

from frontend.conversation import JsonObject, spoken

MOST_WORDS = 8_000
"""Of a text: time and memory grow with the product of both, to 10 ms and 8 MB. Longer ones are shown without marks."""
_WORD = re.compile(r"\w+\s*|[^\w\s]\s*|\s+")
"""With the space behind it, which makes no difference."""


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
    stretches = LCSseq.opcodes([word.rstrip() for word in mine], [word.rstrip() for word in theirs])
    return (
        list(_joined((each.tag != "equal", mine[each.src_start : each.src_end]) for each in stretches)),
        list(_joined((each.tag != "equal", theirs[each.dest_start : each.dest_end]) for each in stretches)),
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


def _joined(stretches: Iterable[tuple[bool, list[str]]]) -> Iterator[Piece]:
    """Words as pieces, neighbours of a kind as one."""
    for is_own, found in groupby(((is_own, words) for is_own, words in stretches if words), lambda each: each[0]):
        yield Piece("".join(word for _, words in found for word in words), is_own)
