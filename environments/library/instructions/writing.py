"""Writes plain texts that meet constraints, for the solutions of `instructions`.

Sentences such as "The old bridges stood near some quiet harbours" are cut to the lengths that are asked for; words that
are asked for take places in them. What comes of it is checked by whoever asks: not every set of constraints can be met.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import count, islice

from environments.library.instructions.constraints import Constraint, words

TOPICS = (
    "bridges",
    "gardens",
    "harbours",
    "islands",
    "kitchens",
    "libraries",
    "markets",
    "mountains",
    "musicians",
    "painters",
    "planets",
    "rivers",
    "sailors",
    "storms",
    "teachers",
    "trains",
)
_ADJECTIVES = ("old", "quiet", "bright", "distant", "small", "heavy", "gentle", "strange", "clever", "famous")
_VERBS = ("stood", "waited", "changed", "rested", "returned", "appeared", "remained", "gathered", "vanished", "slept")
_OTHERS = ("hills", "windows", "voices", "boats", "forests", "towers", "letters", "roads", "shadows", "fields")
_ADVERBS = ("slowly", "often", "again", "together", "silently", "early", "calmly", "twice", "rarely", "proudly")
_ARTICLES = ("the", "some", "these")
_PLACES = ("near", "behind", "beyond")
_SENTENCES = 3
_LENGTH = 8
"""Words of a sentence, where nothing says how many."""
_VALUE = 4
"""Words of a text in a JSON object."""


def written(topic: str, constraints: Sequence[Constraint]) -> str:
    """A text about a topic that meets the constraints, if this way of writing can."""
    asked = {each.kind: each for each in constraints}
    numbers = {kind: each.number for kind, each in asked.items()}
    if "json" in asked:
        keys = asked["json"].keys
        lines = _lines(topic, asked, len(keys), _VALUE * len(keys))
        return _cased(json.dumps(dict(zip(keys, lines, strict=True))), asked)
    amount = numbers.get("bullets") or numbers.get("sentences") or max(numbers.get("paragraphs", 0), _SENTENCES)
    most = numbers.get("few_words", _LENGTH * amount)
    if "sentences" not in asked and "bullets" not in asked and "words" in asked:
        amount = max(numbers.get("paragraphs", 1), numbers["words"] // _LENGTH)
    lines = _lines(topic, asked, amount, numbers.get("words") or min(_LENGTH * amount, most))
    lines = [line[:1].upper() + line[1:] for line in lines]
    if "bullets" in asked:
        return _cased("\n".join(f"- {line}" for line in lines), asked)
    return _cased(
        "\n\n".join(map(" ".join, _grouped([f"{line}." for line in lines], numbers.get("paragraphs", 1)))), asked
    )


def _lines(topic: str, asked: dict[str, Constraint], amount: int, length: int) -> list[str]:
    """So many sentences without their ends, of so many words together."""
    avoided = {each.text for kind, each in asked.items() if kind == "exclude"}
    sizes = [length // amount + (place < length % amount) for place in range(amount)]
    said = [_sentence(topic, size, number, avoided) for number, size in enumerate(sizes)]
    flat = [word for sentence in said for word in sentence]
    taken: set[int] = set()
    for kind, each in asked.items():
        put = words(each.text)
        first = {"starts": 0, "ends": len(flat) - len(put), "nth_word": each.number - 1}.get(kind)
        if first is not None:
            places = range(first, first + len(put))
            for place, word in zip(places, put, strict=True):
                if 0 <= place < len(flat):
                    flat[place] = word
            taken |= set(places)
    if "include" in asked:
        already = flat.count(asked["include"].text)
        # Where sentences end, and then anywhere, but not next to each other: they would read like a stutter.
        wanted = [*range(_LENGTH - 1, len(flat), _LENGTH), *range(1, len(flat), 2), *range(0, len(flat), 2)]
        free = [place for place in dict.fromkeys(wanted) if place not in taken]
        for place in free[: max(asked["include"].number - already, 0)]:
            flat[place] = asked["include"].text
    rest = iter(flat)
    return [" ".join(islice(rest, size)) for size in sizes]


def _sentence(topic: str, size: int, number: int, avoided: set[str]) -> list[str]:
    return list(islice(_words(topic, number, avoided), size))


def _words(topic: str, number: int, avoided: set[str]) -> Iterator[str]:
    """Words of a sentence that may end behind any but the first; another for each number."""
    articles = [word for word in _ARTICLES if word not in avoided]
    places = [word for word in _PLACES if word not in avoided]
    yield from (articles[number % len(articles)], topic)
    for turn in count(number):
        yield _VERBS[turn % len(_VERBS)]
        yield _ADVERBS[(3 * turn + number) % len(_ADVERBS)]
        yield places[turn % len(places)]
        yield articles[(turn + 1) % len(articles)]
        yield _ADJECTIVES[(7 * turn) % len(_ADJECTIVES)]
        yield _OTHERS[(turn + 2 * number) % len(_OTHERS)]
        yield "that"


def _grouped(lines: Sequence[str], groups: int) -> list[list[str]]:
    size, more = divmod(len(lines), groups)
    rest = iter(lines)
    return [list(islice(rest, size + (group < more))) for group in range(groups)]


def _cased(text: str, asked: dict[str, Constraint]) -> str:
    if "upper_case" in asked:
        return text.upper()
    return text.lower() if "lower_case" in asked else text
