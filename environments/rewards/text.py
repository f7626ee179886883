"""Rewards of a text: `exact`, `fuzzy`, `tagged`, `matches`."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal

import re2  # type: ignore[import-untyped]
from msgspec import Meta

from environments.rewards import replies
from environments.rewards.registry import checked_by
from environments.types import FinishedRollout, Problem

Field = Annotated[str, Meta(description="Where problem.data has the right answer, or a list of them.")]
Tag = Annotated[str, Meta(pattern=r"^[\w.-]*$", description="Only what stands in the last <tag>...</tag> counts.")]

_COMPARED = 8_192
"""Characters or words that `fuzzy` compares, of each text: the cost is their product over the bits of a word."""


def exact(
    problem: Problem,
    rollout: FinishedRollout,
    *,
    field: Field = "answer",
    tag: Tag = "",
    take: Annotated[
        Literal["all", "line", "number", "box"],
        Meta(description="What counts of it: all, the last line, number or \\boxed{}."),
    ] = "all",
    ignore_case: Annotated[bool, Meta(description="Capitals are the same as small letters.")] = False,
    strip: Annotated[bool, Meta(description="White space around it does not count.")] = True,
) -> float:
    """1 if the last reply is the answer, else 0. Numbers are compared by value: 1,000.0 is 1000."""
    texts = replies.wanted_texts(problem, field)
    said = _said(problem, rollout, tag)
    if take == "number":
        numbers = [replies.last_number(text) for text in texts]
        if None in numbers:
            raise ValueError(f"take: {field!r} of problem.data has no number in it")
        found = replies.last_number(said)
        return float(found is not None and any(replies.is_same_number(found, number) for number in numbers if number))
    if take == "line":
        said = replies.last_line(said)
    elif take == "box":
        said = replies.in_box(said) or ""
    if strip:
        said, texts = said.strip(), [text.strip() for text in texts]
    if ignore_case:
        said, texts = said.casefold(), [text.casefold() for text in texts]
    return float(said in texts)


def fuzzy(
    problem: Problem,
    rollout: FinishedRollout,
    *,
    field: Field = "answer",
    tag: Tag = "",
    by: Annotated[Literal["characters", "words"], Meta(description="What is compared.")] = "characters",
    ignore_case: Annotated[bool, Meta(description="Capitals are the same as small letters.")] = False,
    floor: Annotated[
        float, Meta(ge=0, lt=1, description="Similarity that still gives 0; from there to 1 it is linear.")
    ] = 0.0,
) -> float:
    """How similar the last reply is to the answer: twice the longest common subsequence over both lengths.

    By words it is the F-measure of ROUGE-L (Lin 2004). Any two English sentences have a similarity of about .5 by
    characters, which `floor` takes away. Of each only the first 8,192 characters or words can be in common.
    """
    said = _said(problem, rollout, tag).strip()
    texts = [text.strip() for text in replies.wanted_texts(problem, field)]
    if ignore_case:
        said, texts = said.casefold(), [text.casefold() for text in texts]
    if by == "words":
        words = said.split()
        found = max(_similarity(text.split(), words) for text in texts)
    else:
        found = max(_similarity(text, said) for text in texts)
    return max(0.0, (found - floor) / (1 - floor))


def _check_tags(*, tag: str | list[str], **_: Any) -> None:
    tags = [tag] if isinstance(tag, str) else tag
    if not all(tags) or not tags:
        raise ValueError("tag: name at least one, and none that is empty")


@checked_by(_check_tags)
def tagged(
    problem: Problem,
    rollout: FinishedRollout,
    *,
    tag: Annotated[str | list[str], Meta(description="Tags that the reply has to have, in this order.")] = "answer",
    other_text: Annotated[
        Literal["anywhere", "before", "nowhere"],
        Meta(description="Where other text may stand: anywhere, only before the end of the last tag, nowhere."),
    ] = "before",
) -> float:
    """1 if the last reply has each tag exactly once, closed and with content, one after the other; else 0.

    Where `think` is one of them, thoughts that the chat template told apart count as such a tag.
    """
    tags = [tag] if isinstance(tag, str) else tag
    at, outside = 0, []
    text = _with_thoughts(problem, rollout) if "think" in tags else replies.answer(problem, rollout)
    for name in tags:
        opened, closed = f"<{name}>", f"</{name}>"
        if text.count(opened) != 1 or text.count(closed) != 1:
            return 0.0
        start, end = text.find(opened, at), text.find(closed, at)
        if start < 0 or not text[start + len(opened) : max(end, 0)].strip():
            return 0.0
        outside.append(text[at:start])
        at = end + len(closed)
    outside = {"anywhere": [], "before": [text[at:]], "nowhere": [*outside, text[at:]]}[other_text]
    return float(not "".join(outside).strip())


def _check_pattern(*, pattern: str, **_: Any) -> None:
    _compiled(pattern)


@checked_by(_check_pattern)
def matches(
    problem: Problem,
    rollout: FinishedRollout,
    *,
    pattern: Annotated[str, Meta(max_length=10_000, description="A regular expression in the syntax of RE2.")],
    tag: Tag = "",
    whole: Annotated[bool, Meta(description="It has to match all of it, not some part.")] = False,
) -> float:
    """1 if a regular expression matches the last reply, else 0. RE2 takes time that is linear in the reply."""
    compiled = _compiled(pattern)
    said = _said(problem, rollout, tag)
    return float((compiled.fullmatch(said) if whole else compiled.search(said)) is not None)


def _said(problem: Problem, rollout: FinishedRollout, tag: str) -> str:
    said = replies.answer(problem, rollout)
    return (replies.in_tag(said, tag) or "") if tag else said


def _with_thoughts(problem: Problem, rollout: FinishedRollout) -> str:
    said = replies.messages_of_policy(problem, rollout)
    if not said:
        return ""
    thoughts = said[-1].reasoning_content
    return said[-1].text if thoughts is None else f"<think>{thoughts}</think>{said[-1].text}"


def _similarity(one: Sequence[str], other: Sequence[str]) -> float:
    if not one or not other:
        return 0.0
    if one == other:  # however long
        return 1.0
    return 2 * _common(one[:_COMPARED], other[:_COMPARED]) / (len(one) + len(other))


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest common subsequence, by a row of bits per item of `other` (Hyyrö 2004)."""
    places: dict[str, int] = {}
    for position, item in enumerate(one):
        places[item] = places.get(item, 0) | 1 << position
    every = (1 << len(one)) - 1
    row = every
    for item in other:
        found = row & places.get(item, 0)
        row = (row + found | row - found) & every
    return len(one) - row.bit_count()


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as exc:
        words = exc.args[0].decode(errors="replace") if isinstance(exc.args[0], bytes) else str(exc)
        raise ValueError(f"pattern: RE2 refuses it: {words}") from exc
