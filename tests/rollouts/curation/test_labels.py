"""What people say of groups: the newest word of each counts, and every earlier one stays."""

from typing import Any

import pytest

from rollouts.errors import Conflict, Invalid
from rollouts.models import Label, Run, ScoredGroup
from rollouts.services.curation import labels
from tests.factories import somebody
from tests.rollouts import story

concurrent = pytest.mark.django_db(transaction=True)
pytestmark = pytest.mark.django_db


def group() -> ScoredGroup:
    run: Run = story.launch()
    story.submit(run, [story.scored("a")], actor="api:t")
    return ScoredGroup.objects.get(key="a")


def say(of: ScoredGroup, verdict: str = "accept", *, by: str = "cy", **fields: Any) -> Label:
    return labels.say(of, user=somebody(by), actor=f"user:{by}", verdict=verdict, **fields)


def test_a_new_word_supersedes_the_persons_own_on_the_same_thing_and_nobody_elses() -> None:
    row = group()
    first, other, of_rollout = say(row), say(row, "reject", by="di"), say(row, "reject", rollout=1)
    second = say(row, "withdrawn")
    assert second.supersedes == first
    assert [each.supersedes for each in (first, other, of_rollout)] == [None] * 3
    current = Label.objects.filter(superseded_by__isnull=True)
    assert set(current) == {second, other, of_rollout}


def test_everything_that_is_said_is_kept() -> None:
    said = say(group(), "accept", rollout=0, tags=["terse", "right", "terse"], score=0.5, note="äh", seconds=3.25)
    said.refresh_from_db()
    assert (said.tags, said.score, said.note, said.seconds) == (["terse", "right"], 0.5, "äh", 3.25)
    assert (said.rollout and said.rollout.index, said.actor, said.verdict) == (0, "user:cy", "accept")


def test_two_rollouts_are_compared_apart_from_what_is_said_of_each() -> None:
    row = group()
    say(row, rollout=0)
    pair = say(row, rollout=0, other=1, preference="other")
    assert (pair.supersedes, pair.other and pair.other.index) == (None, 1)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"verdict": "good"}, "verdict"),
        ({"rollout": 2}, "rollout"),
        ({"rollout": -1}, "rollout"),
        ({"rollout": 0, "other": 1}, "preference"),
        ({"rollout": 0, "other": 0, "preference": "tie"}, "preference"),
        ({"other": 1, "preference": "tie"}, "preference"),
        ({"preference": "left", "rollout": 0, "other": 1}, "preference"),
        ({"tags": [""]}, "tags"),
        ({"tags": ["a\u202eb"]}, "tags"),
        ({"tags": ["t" * 41]}, "tags"),
        ({"tags": [f"t{number}" for number in range(21)]}, "tags"),
        ({"score": float("nan")}, "score"),
        ({"score": 1e39}, "score"),
        ({"note": "\0"}, "note"),
        ({"note": "n" * 2_001}, "note"),
        ({"seconds": -1.0}, "seconds"),
        ({"seconds": float("inf")}, "seconds"),
    ],
)
def test_what_makes_no_sense_is_named_and_nothing_is_stored(fields: dict[str, Any], named: str) -> None:
    row = group()
    with pytest.raises(Invalid) as refused:
        say(row, **fields)
    assert list(refused.value.fields) == [named]
    assert not Label.objects.exists()


def test_what_is_still_played_has_nothing_to_speak_of() -> None:
    run = story.launch()
    story.claim(run)
    with pytest.raises(Invalid, match="is still being played"):
        say(ScoredGroup.objects.filter(run=run).earliest("id"))


@concurrent
def test_one_person_in_two_tabs_says_one_thing_at_a_time() -> None:
    row = group()
    for _ in range(5):
        outcomes = story.together(lambda: say(row), lambda: say(row, "reject"))
        assert {type(each) for each in outcomes} <= {Label, Conflict}
        assert Label in {type(each) for each in outcomes}
        assert Label.objects.filter(superseded_by__isnull=True).count() == 1
