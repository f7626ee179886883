r"""`math`: whether the answer is mathematically the right one, as `math-verify` sees it.

What counts of a reply is the last `\boxed{...}` that is closed and not blank, else the last `<answer>`, else all of it
where it is nothing but a formula, else its last number or fraction. Only that reaches the process that parses it, see
`math_workers`.
"""

import re
from typing import Annotated

from msgspec import Meta

from environments.rewards import replies
from environments.rewards.math_workers import workers
from environments.types import FinishedRollout, Problem

_LONGEST = 1_000
"""Characters of an answer: a longer one is wrong."""
_BARE = 200
"""Most characters of a reply that is nothing but a formula."""
_WORD = re.compile(
    r"(?<![\\a-zA-Z])(?:[a-z]{4,}|(?:an|are|as|for|get|has|he|is|it|its|of|she|so|the|to|was|we|you)(?![a-z]))",
    re.IGNORECASE,
)
"""A word of prose: variables stand alone, commands have a backslash, most functions have three letters."""
_NUMBER_OR_FRACTION = re.compile(rf"(?:{replies.NUMBER.pattern})(?:/[0-9]+)?")
_NO_UNIT = (
    r"hundred\w*|thousand\w*|lakhs?|crores?|\w+illion\w*|[mb]n|mil|kilo|dozen\w*|score|tens|grand|hal(?:f|ves)"
    r"|quarters?|thirds?|fifths?|eighths?|ninths?|twelfths?|(?:four|six|seven|ten|eleven|\w+teen)ths?|\w+ieths?"
    r"|minus|plus|times|squared|cubed|factorial|pi|point|and|but|not|or|out"
    r"|(?:to|by|less|fewer|more|over|under|above|below) (?:than|zero)"
)
"""What makes another number of the one before it, among the words behind that."""
_OTHER_NUMBER = re.compile(rf"\b(?:{_NO_UNIT})\b", re.IGNORECASE)
_NO_FIRST = r"of|to|by|less|fewer|more|than|over|under|above|below"
"""The same right behind it: 4 over, and yet 12 cups of flour, 20 days left over."""
_AMOUNT = re.compile(
    rf"(?:(?:US)?\\?[$€£¥]|(?:USD|EUR|GBP) )? ?(?:{replies.NUMBER.pattern})"
    rf"(?: ?\\?[$€£¥])?(?: (?!(?:{_NO_FIRST})\b|.*\b(?:{_NO_UNIT})\b)[a-z/]{{2,}}(?: [a-z/]+){{0,3}})?[.!?]*",
    re.IGNORECASE,
)
"""A number with what it counts, in up to four words. The first is not one letter, which may be a variable."""
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm|sf)?|math(?:bf|it|rm|sf)|mbox)\{([^{}]*)\}")
_SPACE = re.compile(r"\\(?:[ ,:;!]|q?quad\b)|~")


async def math(
    problem: Problem,
    rollout: FinishedRollout,
    *,
    field: Annotated[str, Meta(description="Where problem.data has the right answer, or a list of them.")] = "answer",
    tag: Annotated[str, Meta(pattern=r"^[\w.-]+$", description="Where an answer stands that is in no box.")] = "answer",
    amounts: Annotated[
        bool, Meta(description="A number counts without money, units or marks around it: 18 dollars, $18!")
    ] = False,
    deadline_s: Annotated[
        float, Meta(gt=0, le=60, description="Of a processor, for a comparison; what takes longer is wrong.")
    ] = 2.0,
) -> float:
    """1 if the last reply's answer equals the right one, else 0. Metric `math_undecided`: 1 where it took too long.

    A right answer that is no mathematics ("Monday") is compared as text, without regard to capitals and white space.
    """
    rollout.metrics["math_undecided"] = 0.0
    said = answered(replies.answer(problem, rollout), tag)
    if amounts:
        said = _counted(said)
    for gold in replies.wanted_texts(problem, field):
        if not said or len(said) > _LONGEST:
            continue
        is_prose = _is_prose(gold)
        # Before words a "- " is no sign, wherever they stand.
        if _normal(gold) in (_normal(said), _normal(said.removeprefix("- ")) if is_prose else None):
            return 1.0
        if is_prose or len(gold) > _LONGEST:
            continue
        decision = await workers().decide(_formula(gold), _formula(said), deadline_s)
        if decision is None:
            rollout.metrics["math_undecided"] = 1.0
        elif decision["is_parsed"] and decision["is_equal"]:
            return 1.0
    return 0.0


def answered(text: str, tag: str = "answer") -> str:
    """The part of a reply that is its answer; empty: it gives none."""
    for found in (replies.in_box(text), replies.in_tag(text, tag)):
        if found is not None:
            return _unmarked(found)
    # An entry of a list only where all of it is one: in a box and in a tag a leading "- " is a sign.
    whole = _unmarked(text.strip().removeprefix("- "))
    if len(whole) <= _BARE and "\n" not in whole and not _WORD.search(whole):
        return whole
    numbers: list[str] = _NUMBER_OR_FRACTION.findall(text[-replies.WINDOW :])
    return numbers[-1].replace("−", "-") if numbers else ""


def _counted(said: str) -> str:
    """The number, where the answer is one with what it counts; else the answer."""
    if len(said) > _BARE:
        return said
    plain = " ".join(_SPACE.sub(" ", _untexted(said)).split())
    if _AMOUNT.fullmatch(plain):
        return replies.last_number(plain) or said
    # As plain words, which math-verify passes over as a unit where they stand in a \text.
    return plain if _OTHER_NUMBER.search(plain) else said


def _unmarked(text: str) -> str:
    """Without marks of markdown around it: emphasis, code, about."""
    return text.strip().strip("*_`~ \n")


def _is_prose(gold: str) -> bool:
    """Whether math-verify would take its letters for a product of variables, in which their order says nothing."""
    return _WORD.search(gold) is not None and not any(map(str.isdigit, gold))


def _formula(text: str) -> str:
    return " ".join(text.replace("$", " ").split())


def _untexted(text: str) -> str:
    """Without the commands around words, also around one another."""
    while (inner := _TEXT.sub(r"\1", text)) != text:
        text = inner
    return text


def _normal(text: str) -> str:
    return " ".join(_untexted(text).replace("$", " ").casefold().split()).rstrip(". ")
