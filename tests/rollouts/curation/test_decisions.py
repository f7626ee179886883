"""What was decided of what people spoke of: by who adjudicates, else by a majority, else not."""

from typing import Any

import pytest

from rollouts.models import LabelQueue, Run, ScoredGroup
from rollouts.selectors import curation
from rollouts.services.curation import labels, queues, turns
from tests.factories import somebody
from tests.rollouts import story

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    run = story.launch()
    story.submit(run, [story.scored("a"), story.scored("b")], actor="api:t")
    return run


def group() -> ScoredGroup:
    return ScoredGroup.objects.get(key="a")


def say(name: str, verdict: str, **said: Any) -> None:
    labels.say(group(), user=somebody(name), actor=f"user:{name}", verdict=verdict, **said)


def answer(queue: LabelQueue, name: str, verdict: str) -> None:
    turn = turns.take(queue, somebody(name))
    assert turn is not None
    turns.answer(turn, user=somebody(name), actor=f"user:{name}", verdict=verdict)


def decided() -> list[tuple[int | None, int | None, str, str]]:
    return [(each.rollout, each.other, each.word, each.how) for each in curation.decided(group())]


def test_the_majority_decides_and_half_is_none(run: Run) -> None:
    assert decided() == []
    say("cy", "accept")
    say("di", "accept")
    say("eve", "reject")
    assert decided() == [(None, None, "accept", "majority")]
    say("fay", "reject")
    assert decided() == [(None, None, "", "undecided")]
    [decision] = curation.decided(group())
    assert decision.words == {"accept": 2, "reject": 2}


def test_each_person_has_one_voice_the_newest_and_what_is_skipped_or_taken_back_none(run: Run) -> None:
    queue = queues.create(run.project, name="q", actor="user:cy")
    say("cy", "accept")
    answer(queue, "cy", "reject")
    say("di", "skip")
    say("eve", "accept")
    say("eve", "withdrawn")
    [decision] = curation.decided(group())
    assert (decision.word, decision.words) == ("reject", {"reject": 1})


def test_the_group_its_rollouts_and_pairs_of_them_are_decided_apart(run: Run) -> None:
    say("cy", "reject")
    say("cy", "accept", rollout=1)
    say("cy", "accept", rollout=0, other=1, preference="other")
    say("di", "skip", rollout=0, other=1)
    assert decided() == [
        (None, None, "reject", "majority"),
        (0, 1, "other", "majority"),
        (1, None, "accept", "majority"),
    ]


def test_two_are_the_same_two_in_either_order(run: Run) -> None:
    say("cy", "accept", rollout=0, other=1, preference="first")
    say("di", "accept", rollout=1, other=0, preference="other")
    say("eve", "accept", rollout=0, other=1, preference="first")
    say("eve", "accept", rollout=1, other=0, preference="tie")
    [decision] = curation.decided(group())
    assert (decision.rollout, decision.other, decision.word) == (0, 1, "first")
    assert decision.words == {"first": 2, "tie": 1}


def test_the_adjudicated_word_decides_against_the_majority_and_the_newest_of_those(run: Run) -> None:
    source = queues.create(run.project, name="q", actor="user:cy", words_per_item=3)
    for name, verdict in (("cy", "accept"), ("di", "accept"), ("eve", "reject")):
        answer(source, name, verdict)
    for at, verdict in enumerate(("reject", "accept")):
        answer(queues.create(run.project, name=f"decide {at}", actor="user:cy", source=source.key), "fay", verdict)
        [decision] = curation.decided(group())
        assert (decision.word, decision.how, decision.actor) == (verdict, "adjudicated", "user:fay")
        assert decision.words == {"accept": 2, "reject": 1}
    assert [each.how for each in curation.decided_in(source)] == ["adjudicated"]


def test_of_a_blind_queue_nothing_is_decided_before_it_is_closed(run: Run) -> None:
    queue = queues.create(run.project, name="q", actor="user:cy", is_blind=True, words_per_item=2)
    answer(queue, "cy", "accept")
    assert decided() == []
    assert curation.decided_in(queue) == []
    queues.close(queue)
    assert decided() == [(None, None, "accept", "majority")]
