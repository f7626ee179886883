"""What the benchmark of annotators finds wrong with the words of a queue."""

import argparse
from typing import Any

import pytest

from benchmarks import annotators
from rollouts.models import LabelQueue
from rollouts.services.curation import queues, turns
from tests.factories import somebody
from tests.rollouts import story

pytestmark = pytest.mark.django_db


@pytest.fixture
def queue() -> LabelQueue:
    """Two groups that want two words each; ada said one on the first, and all else is open."""
    run = story.launch()
    story.submit(run, [story.scored("a"), story.scored("b")], actor="api:t")
    made = queues.create(run.project, name="look", actor="user:cy", words_per_item=2)
    turn = turns.take(made, somebody("ada"))
    assert turn is not None
    turns.answer(turn, user=turn.person, actor="user:ada", verdict="accept")
    return made


def faults(queue: LabelQueue, **given: Any) -> list[str]:
    told = {"people": 1, "items": 2, "more": 0, "minutes": 0.0, "words": 2, "unit": "group", "blind": False} | given
    found: list[str] = annotators.report(queue, [], argparse.Namespace(**told), 1.0)["faults"]
    return found


def test_items_that_want_more_words_when_the_time_is_over_are_no_fault(queue: LabelQueue) -> None:
    assert faults(queue, minutes=1.0) == []


def test_without_a_time_every_item_has_its_words(queue: LabelQueue) -> None:
    [first, second, few] = faults(queue)
    assert "counts 1 words and has those of ['ada']" in first
    assert "counts 0 words" in second
    assert few == "1 of 2 items have a word"


def test_a_word_that_is_not_there_is_a_fault_at_any_time(queue: LabelQueue) -> None:
    queue.items.update(words=2)
    assert len(faults(queue, minutes=1.0)) == 2
