r"""`choice`: which letter of a multiple-choice question the policy chose.

A letter in `\boxed{}` or `<answer>` is shown; one behind "the answer is" is said, and counts where none is shown; one
that stands alone or is marked, as in "(b)" and "C.", is only named, and counts where none is said. Two different
letters of the same rank are none: whoever names several has not chosen.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated

from msgspec import Meta

from environments.rewards import replies
from environments.types import FinishedRollout, Problem

_WINDOW = 8_192
"""Characters at the end that are read."""
_CONTENT = 200
"""Most characters in a box or a tag of which a letter at the beginning is the choice: "B) the moon"."""
_WORDS = "AI"
"""Letters that are English words: alone they are a choice only at the end of a sentence or where they are marked."""


def choice(
    problem: Problem,
    rollout: FinishedRollout,
    *,
    field: Annotated[str, Meta(description="Where problem.data has the letter.")] = "answer",
    letters: Annotated[str, Meta(pattern=r"^[A-Z]{2,26}$", description="Of the choices.")] = "ABCD",
) -> float:
    """1 if the last reply chooses the right letter and no other, else 0."""
    right = str(replies.wanted(problem, field)).strip(" ().").upper()
    if len(right) != 1 or right not in letters:
        raise ValueError(f"letters: {right!r}, the {field!r} of problem.data, is none of {letters}")
    return float(chosen(replies.answer(problem, rollout), letters) == right)


def chosen(text: str, letters: str = "ABCD") -> str | None:
    """The letter that a text chooses; None: it chooses none, or more than one."""
    text = text[-_WINDOW:]
    for found in (_shown(text, letters), _said(text, letters), _named(text, letters)):
        if found:
            return found.pop() if len(found) == 1 else None
    return None


def _shown(text: str, letters: str) -> set[str]:
    patterns = _patterns(letters)
    found = set()
    for opened in patterns.opened.finditer(text):
        rest = text[opened.end() : opened.end() + _CONTENT]
        content = rest.partition("}" if opened[0].startswith("\\boxed") else "</")[0]
        if first := patterns.first.match(content):
            rest = content[first.end(1) :]
            # Behind "C." stands what is chosen, in which a capital is no further choice: "C. vitamin A".
            others = _several(rest, letters) if patterns.closed.match(rest) else _named(rest, letters)
            found |= {first[1].upper()} | others
    return found


def _several(text: str, letters: str) -> set[str]:
    """What goes on behind a letter, and whatever is marked as the next choice of a list."""
    patterns = _patterns(letters)
    joined = patterns.joined.match(text)
    listed = {next(filter(None, each.groups())).upper() for each in patterns.listed.finditer(text)}
    return listed | {letter.upper() for letter in patterns.letter.findall(joined[0] if joined else "")}


def _said(text: str, letters: str) -> set[str]:
    patterns = _patterns(letters)
    found = set()
    for said in patterns.said.finditer(text):
        behind = patterns.behind.match(text, said.end())
        if behind and not patterns.judged.match(text, behind.end()):  # "Answer A is wrong"
            found |= {letter.upper() for letter in patterns.letter.findall(behind[0])}
    return found


def _named(text: str, letters: str) -> set[str]:
    patterns = _patterns(letters)
    if alone := patterns.alone.match(text):
        return {alone[1].upper()}
    return {next(filter(None, named.groups())).upper() for named in patterns.named.finditer(text)}


class _Patterns:
    """Repetitions are bounded and none is inside another, so that each takes time linear in the text."""

    def __init__(self, letters: str) -> None:
        upper, either = f"[{letters}]", f"[{letters}{letters.lower()}]"
        opening, closing = r"[(*\['\"$]{0,3}", r"[)*\].'\"$]{0,4}"
        # Of "a dog" and "be it", none begins with a letter; a small one is a choice only where it ends or is marked.
        letter = rf"(?:{upper}(?![\w'’])|{either}(?=[)*\].,;:'\"$}}]|\s*\Z))"
        also = rf"\s?(?:,|/|&|\bor\b|\band\b)\s?{opening}{letter}{closing}"
        self.opened = re.compile(r"\\boxed\{|<answer>")
        font = r"(?:\\(?:text\w{0,2}|math(?:bf|rm))\{\s{0,3})?"
        self.first = re.compile(rf"\s{{0,9}}{font}(?i:(?:option|choice|letter)\s)?{opening}({letter})")
        self.closed = re.compile(r"[)*\].:'\"$}]")
        self.joined = re.compile(rf"{closing}(?:{also}){{1,25}}")
        marks = list(_forms(letters, upper, either))
        self.listed = re.compile("|".join(marks[:2]))
        self.judged = re.compile(r"\s(?:is|was|are|were|isn't|wasn't|can't|cannot)\b")
        self.said = re.compile(
            r"(?i:\b(?:answer|correct (?:option|choice|one|letter))\b\W{0,4}"
            r"(?:(?:is|was|would be|must be)\b)?[\s:=]{0,9}(?:therefore\s|thus\s)?(?:(?:option|choice|letter)\s)?)"
        )
        self.behind = re.compile(rf"{opening}{letter}{closing}(?:{also}){{0,25}}")
        self.letter = re.compile(rf"(?<![\w'’]){either}(?![\w'’])")
        self.alone = re.compile(rf"[\s(*\[]{{0,9}}({either})[\s)*\].]{{0,9}}\Z")
        self.named = re.compile("|".join(marks))


def _forms(letters: str, upper: str, either: str) -> Iterator[str]:
    """Patterns of a letter that is named, each with one group."""
    yield rf"(?<!\w)[(\[]({either})[)\]]"
    yield rf"(?<![\w'’(\[])({upper})\)"
    yield rf"\*\*({upper})\*\*"
    before, behind = r"(?<![\w'’.-])(?<!not )", r"(?![\w'’-])"
    if others := [letter for letter in letters if letter not in _WORDS]:
        yield rf"{before}([{''.join(others)}]){behind}"
    if words := [letter for letter in letters if letter in _WORDS]:
        is_next = rf"[.:;!]|\s*\Z|\s?(?:,|/|&|or\b|and\b)\s?{upper}\b|\s(?:is|was|seems|looks)\b"
        yield rf"{before}([{''.join(words)}])(?={is_next})"
    if "A" in letters:  # no article is a capital inside a sentence
        yield rf"(?<=[a-z,] )(?<!not )(A){behind}"


@lru_cache(maxsize=16)
def _patterns(letters: str) -> _Patterns:
    return _Patterns(letters)
