"""Constraints on a text that a program can check, whatever the text is about and whatever language it is in.

A constraint is told in a sentence and holds for a text or does not. Capitals make no difference to words. A check takes
some milliseconds at worst: texts are at most `LONGEST` characters, and no pattern takes longer than they are long.
"""

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import msgspec

LONGEST = 20_000
"""Characters of a text that meets anything: no constraint asks for more than a few hundred words."""
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_CLOSING = "\"'”’)]*_"
_ENDS = (".", "!", "?", "…", "。", "！", "？")
_BLANK_LINES = re.compile(r"\n[^\S\n]*\n\s*")
_RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "exactly": lambda found, asked: found == asked,
    "at least": lambda found, asked: found >= asked,
    "at most": lambda found, asked: found <= asked,
}
_FEWEST_WORDS = 3
_MOST_OF_ONE_WORD = 0.4
_JUDGED_FROM = 8
"""Words from which on it is looked whether one of them makes up the text."""


class Constraint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is asked of a text; which fields count is a matter of its kind."""

    kind: str
    relation: str = "exactly"
    number: int = 0
    text: str = ""
    keys: list[str] = []


class _Kind(NamedTuple):
    told: Callable[[Constraint], str]
    holds: Callable[[Constraint, str], bool]


def told(constraint: Constraint) -> str:
    """The constraint as a sentence."""
    return KINDS[constraint.kind].told(constraint)


def holds(constraint: Constraint, text: str) -> bool:
    """Whether a text meets it; no text that is too long does."""
    return len(text) <= LONGEST and KINDS[constraint.kind].holds(constraint, text.strip())


def is_text(text: str) -> bool:
    """Whether there is something that a constraint can be met by: some words, of which no single one makes up the text.

    Without it nothing at all would have no commas, and a word said forty times would have forty words.
    """
    found = words(text) if len(text) <= LONGEST else []
    if len(found) < _FEWEST_WORDS:
        return False
    [(_, most)] = Counter(found).most_common(1)
    return len(found) < _JUDGED_FROM or most <= _MOST_OF_ONE_WORD * len(found)


def words(text: str) -> list[str]:
    """The words, in small letters; what stands between letters and digits belongs to none."""
    return _WORD.findall(text.lower())


def sentences(text: str) -> int:
    """How many words are followed by the end of a sentence."""
    return sum(token.rstrip(_CLOSING).endswith(_ENDS) and bool(_WORD.search(token)) for token in text.split())


def paragraphs(text: str) -> int:
    """How many blocks blank lines make of it."""
    return len(_BLANK_LINES.split(text.strip())) if text.strip() else 0


def bullets(text: str) -> int:
    """How many lines begin with "- " or "* " and go on."""
    return sum(line.lstrip().startswith(("- ", "* ")) and bool(_WORD.search(line)) for line in text.splitlines())


def _counted(constraint: Constraint, found: int) -> bool:
    return _RELATIONS[constraint.relation](found, constraint.number)


def _amount(constraint: Constraint, noun: str) -> str:
    return f"{constraint.relation} {constraint.number} {noun}{'' if constraint.number == 1 else 's'}"


def _is_object(constraint: Constraint, text: str) -> bool:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    is_whole = isinstance(found, dict) and list(found) == constraint.keys
    return is_whole and all(isinstance(value, str) and words(value) for value in found.values())


def _nth(constraint: Constraint, text: str) -> bool:
    found = words(text)
    return len(found) >= constraint.number and found[constraint.number - 1] == constraint.text


def _in_quotes(constraint: Constraint) -> str:
    return f'"{constraint.text}"'


def _starts(constraint: Constraint, text: str) -> bool:
    asked = words(constraint.text)
    return words(text[: 20 * len(constraint.text)])[: len(asked)] == asked


def _ends(constraint: Constraint, text: str) -> bool:
    asked = words(constraint.text)
    return words(text)[-len(asked) :] == asked


KINDS: dict[str, _Kind] = {
    "words": _Kind(
        lambda c: f"It has {_amount(c, 'word')}.",
        lambda c, text: _counted(c, len(words(text))),
    ),
    "few_words": _Kind(
        lambda c: f"It has {_amount(c, 'word')}.",
        lambda c, text: _counted(c, len(words(text))),
    ),
    "sentences": _Kind(
        lambda c: f"It has {_amount(c, 'sentence')}.",
        lambda c, text: _counted(c, sentences(text)),
    ),
    "paragraphs": _Kind(
        lambda c: f"It has {_amount(c, 'paragraph')}, with a blank line between one and the next.",
        lambda c, text: _counted(c, paragraphs(text)),
    ),
    "bullets": _Kind(
        lambda c: f'It has {_amount(c, "bullet point")}, each in a line that begins with "- ".',
        lambda c, text: _counted(c, bullets(text)),
    ),
    "include": _Kind(
        lambda c: f"It has the word {_in_quotes(c)} {_amount(c, 'time')}.",
        lambda c, text: _counted(c, words(text).count(c.text)),
    ),
    "exclude": _Kind(
        lambda c: f"It does not have the word {_in_quotes(c)}.",
        lambda c, text: c.text not in words(text),
    ),
    "starts": _Kind(lambda c: f"It begins with the words {_in_quotes(c)}.", _starts),
    "ends": _Kind(lambda c: f"It ends with the words {_in_quotes(c)}.", _ends),
    "nth_word": _Kind(lambda c: f"Word number {c.number} of it is {_in_quotes(c)}.", _nth),
    "lower_case": _Kind(
        lambda c: "It has no capital letters.",
        lambda c, text: text == text.lower(),
    ),
    "upper_case": _Kind(
        lambda c: "It has capital letters only, and no small ones.",
        lambda c, text: text == text.upper(),
    ),
    "no_commas": _Kind(lambda c: "It has no commas.", lambda c, text: not set(",，、،") & set(text)),
    "json": _Kind(
        lambda c: (
            "It is a JSON object and nothing else, with the keys {} in this order, and a text of some words for each."
        ).format(", ".join(f'"{key}"' for key in c.keys)),
        _is_object,
    ),
}
"""Every kind of constraint."""
