"""Agreement equals the library's, and figures that were worked out elsewhere."""

import krippendorff
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.models import LabelQueue, Run
from rollouts.selectors import agreement
from rollouts.services.curation import queues, turns
from tests.factories import somebody
from tests.rollouts import story

# Krippendorff's example: four observers, twelve units, nominal alpha .743 (Computing Krippendorff's Alpha-Reliability,
# 2011, section C).
OBSERVERS = {
    "a": [1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None],
    "b": [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3],
    "c": [None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None],
    "d": [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None],
}
TABLE = [{who: str(said[unit]) for who, said in OBSERVERS.items() if said[unit] is not None} for unit in range(12)]


def test_alpha_is_that_of_the_example_in_the_literature() -> None:
    assert agreement.alpha(TABLE) == pytest.approx(0.743, abs=5e-4)


SAID = st.dictionaries(st.sampled_from("abcd"), st.sampled_from(["accept", "reject"]), min_size=2)


@given(st.lists(SAID, min_size=1, max_size=8))
def test_alpha_is_the_librarys(table: list[dict[str, str]]) -> None:
    people = sorted({who for said in table for who in said})
    codes = {"accept": 0.0, "reject": 1.0}
    data = np.array([[codes[said[who]] if who in said else np.nan for said in table] for who in people])
    if np.unique(data[~np.isnan(data)]).size < 2:
        assert agreement.alpha(table) is None
    else:
        expected = krippendorff.alpha(reliability_data=data, level_of_measurement="nominal")
        assert agreement.alpha(table) == pytest.approx(expected)


def test_percent_is_of_all_pairs_of_words() -> None:
    # Of the first item 3 pairs, 1 the same; of the second 1, the same; of the third none.
    table = [{"a": "x", "b": "x", "c": "y"}, {"a": "x", "c": "x"}, {"b": "x"}]
    assert agreement.percent(table) == (4, 0.5)
    assert agreement.percent(agreement.with_others(table, "b")) == (2, 0.5)
    assert agreement.percent([{"a": "x"}]) == (0, None)


def test_what_was_never_said_twice_has_no_alpha() -> None:
    assert agreement.alpha([{"a": "x"}, {"b": "y"}]) is None


@pytest.mark.django_db
def test_alpha_of_a_person_is_of_the_pairs_in_which_they_are_and_not_of_the_whole_queue() -> None:
    run: Run = story.launch()
    story.submit(run, [story.scored(f"g{number}") for number in range(10)], actor="api:t")
    queue: LabelQueue = queues.create(run.project, name="q", actor="user:cy", words_per_item=3)
    usual, opposite = (["accept", "reject"] * 5, ["reject", "accept"] * 5)
    for name, verdicts in (("ann", usual), ("bob", usual), ("cy", opposite)):
        for verdict in verdicts:
            turn = turns.take(queue, somebody(name))
            assert turn is not None
            turns.answer(turn, user=somebody(name), actor=f"user:{name}", verdict=verdict)
    codes, opposed = [1.0, 0.0] * 5, [0.0, 1.0] * 5
    with_the_others = {
        "user:ann": [[*codes, *codes], [*codes, *opposed]],
        "user:bob": [[*codes, *codes], [*codes, *opposed]],
        "user:cy": [[*opposed, *opposed], [*codes, *codes]],
    }
    expected = {
        person: krippendorff.alpha(reliability_data=np.array(pairs), level_of_measurement="nominal")
        for person, pairs in with_the_others.items()
    }
    found = {each.of: each for each in agreement.of_queue(queue).people}
    assert {person: each.alpha for person, each in found.items()} == pytest.approx(expected)
    assert {person: round(alpha, 3) for person, alpha in expected.items()} == {
        "user:ann": 0.025,
        "user:bob": 0.025,
        "user:cy": -0.95,
    }
    assert {person: (each.pairs, each.percent) for person, each in found.items()} == {
        "user:ann": (20, 0.5),
        "user:bob": (20, 0.5),
        "user:cy": (20, 0.0),
    }


@pytest.mark.django_db
def test_a_queue_has_it_for_verdicts_people_and_tags_and_skips_count_for_nothing() -> None:
    run: Run = story.launch()
    story.submit(run, [story.scored(key) for key in "abcd"], actor="api:t")
    queue: LabelQueue = queues.create(run.project, name="q", actor="user:cy", words_per_item=2, tags=["loop"])
    for name, verdicts in (
        ("ann", ["accept", "reject", "accept", "skip"]),
        ("bob", ["accept", "accept", "accept", "reject"]),
    ):
        for verdict in verdicts:
            turn = turns.take(queue, somebody(name))
            assert turn is not None
            tags = ["loop"] if verdict == "reject" else []
            turns.answer(turn, user=somebody(name), actor=f"user:{name}", verdict=verdict, tags=tags)
    found = agreement.of_queue(queue)
    assert (found.words.pairs, found.words.percent, found.disagreements) == (3, pytest.approx(2 / 3), 1)
    assert found.words.alpha == pytest.approx(0.0)
    assert [(each.of, each.pairs) for each in found.people] == [("user:ann", 3), ("user:bob", 3)]
    assert [(each.of, each.percent) for each in found.tags] == [("loop", pytest.approx(2 / 3))]
