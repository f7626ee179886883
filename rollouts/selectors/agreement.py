"""How far people agree in a queue: percent of pairs, and Krippendorff's alpha (krippendorff 0.9, nominal).

A table has a row for each person and a column for each item; what somebody did not look at, or skipped, is missing.
Alpha is 1 for perfect agreement, 0 for what chance would give, negative below (Krippendorff, Content Analysis, 2004,
chapter 11). It is not defined where everybody always says the same one thing, or nothing was said twice: None.
Of a queue of pairs the words are preferences: first, other, tie, whichever stood left.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import krippendorff
import numpy as np
from django.db.models import Case, Value, When
from django.db.models.functions import Concat

from rollouts.models import Label, LabelQueue, LabelVerdict
from rollouts.selectors import label_queues

HIDDEN = "How far people agree in a blind queue is hidden from those who are given its items until it is closed."
_COUNTED = (LabelVerdict.ACCEPT, LabelVerdict.REJECT)
_Item = tuple[int, int | None, int | None]
"""Ids of a group, of a rollout and of the one beside it."""


@dataclass(frozen=True)
class Agreement:
    """Of two words or more on the same items."""

    of: str
    """A person (`user:<name>`), a tag, or empty for the words of the whole queue."""
    pairs: int
    """Two people's words on one item, over all items."""
    percent: float | None
    """Of the pairs, those that say the same."""
    alpha: float | None


@dataclass(frozen=True)
class QueueAgreement:
    """How far people agree in one queue."""

    words: Agreement
    """Accept or reject; of pairs which is better."""
    people: list[Agreement]
    """Each with the others: only the pairs in which the person is."""
    tags: list[Agreement]
    disagreements: int
    """Items on which people said different things."""


@dataclass(frozen=True)
class _Word:
    item: _Item
    person: str
    word: str
    tags: frozenset[str]


def shown_to(queue: LabelQueue, user: Any) -> QueueAgreement | None:
    """As `of_queue`; None for those who are given items of a blind queue that is open (`HIDDEN`): with few words such
    figures tell what each person says."""
    is_hidden = queue.is_blind and queue.closed_at is None and label_queues.is_given_to(queue, user)
    return None if is_hidden else of_queue(queue)


def of_queue(queue: LabelQueue) -> QueueAgreement:
    """Words, people and tags of what counts of what was said in a queue. One query."""
    said = Label.objects.filter(queue=queue, superseded_by__isnull=True, verdict__in=_COUNTED)
    # Whose token it was: two people may have named theirs alike, and one may speak by several.
    person = Concat(Value("user:"), "person__username")
    rows = said.annotate(by=Case(When(person__isnull=True, then="actor"), default=person))
    columns = ("group_id", "rollout_id", "other_id", "by", "preference", "verdict", "tags")
    words = [
        _Word((group, rollout, other), by, preference or verdict, frozenset(tags))
        for group, rollout, other, by, preference, verdict, tags in rows.values_list(*columns)
    ]
    by_item = _by_item(words, lambda word: word.word)
    people = sorted({word.person for word in words})
    tags = sorted({*queue.tags, *(tag for word in words for tag in word.tags)})
    return QueueAgreement(
        words=_agreement("", by_item.values()),
        people=[_agreement(person, with_others(by_item.values(), person)) for person in people],
        tags=[_agreement(tag, _by_item(words, lambda word, tag=tag: str(tag in word.tags)).values()) for tag in tags],  # type: ignore[misc]
        disagreements=sum(len(set(said.values())) > 1 for said in by_item.values()),
    )


def with_others(table: Iterable[dict[str, str]], person: str) -> list[dict[str, str]]:
    """A table of the pairs of words in which somebody is: how far others agree among themselves is not theirs."""
    return [
        {person: said[person], other: word}
        for said in table
        if person in said
        for other, word in said.items()
        if other != person
    ]


def percent(table: Iterable[dict[str, str]]) -> tuple[int, float | None]:
    """How many pairs of words there are, and the share of those that say the same: of each item all its pairs.

    ``table``: for each item, person -> word.
    """
    pairs = [one == other for said in table for one, other in combinations(said.values(), 2)]
    return len(pairs), float(np.mean(pairs)) if pairs else None


def alpha(table: Iterable[dict[str, str]]) -> float | None:
    """Krippendorff's alpha of nominal words; None where it is not defined."""
    items = [said for said in table if len(said) > 1]
    values = sorted({word for said in items for word in said.values()})
    if len(values) < 2:
        return None
    people = sorted({person for said in items for person in said})
    rows = {person: row for row, person in enumerate(people)}
    codes = {word: code for code, word in enumerate(values)}
    data = np.full((len(people), len(items)), np.nan)
    for column, said in enumerate(items):
        for person, word in said.items():
            data[rows[person], column] = codes[word]
    return float(krippendorff.alpha(reliability_data=data, level_of_measurement="nominal"))


def _agreement(of: str, table: Collection[dict[str, str]]) -> Agreement:
    return Agreement(of, *percent(table), alpha(table))


def _by_item(words: Iterable[_Word], said: Callable[[_Word], str]) -> dict[_Item, dict[str, str]]:
    """For each item what each person said of it."""
    found: defaultdict[_Item, dict[str, str]] = defaultdict(dict)
    for word in words:
        found[word.item][word.person] = said(word)
    return dict(found)
