"""exact, fuzzy, tagged, matches: right replies earn, near misses do not, and nothing earns by accident."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.errors import InvalidArguments, RegistryError
from environments.rewards.text import _common
from tests.environments.rewards.replying import problem, rollout, score


@pytest.mark.parametrize(
    ("reply", "parameters", "reward"),
    [
        ("Paris", {}, 1),
        (" Paris\n", {}, 1),
        (" Paris\n", {"strip": False}, 0),
        ("paris", {}, 0),
        ("PARIS", {"ignore_case": True}, 1),
        ("It is Paris", {}, 0),
        ("It is\nParis", {"take": "line"}, 1),
        (r"It is \boxed{Paris}.", {"take": "box"}, 1),
        ("It is Paris", {"take": "box"}, 0),
        ("It is <answer>Paris</answer>!", {"tag": "answer"}, 1),
        ("It is Paris", {"tag": "answer"}, 0),
        ("<think>Paris</think>Rome", {}, 0),
        ("", {}, 0),
    ],
)
def test_exact_wants_the_answer_itself(reply: str, parameters: dict[str, Any], reward: float) -> None:
    assert score("exact", problem(answer="Paris"), reply, **parameters) == reward


@pytest.mark.parametrize(
    ("answer", "reply", "reward"),
    [
        (1000, "I count 999, no, 1,000.", 1),
        ("1,000", "1000.0", 1),
        (-3, "so x = -3", 1),
        (-3, "10-3", 0),
        ("#### 42", "42", 1),
        (42, "42 or 43", 0),
        (42, "", 0),
    ],
)
def test_exact_compares_the_last_number_by_value(answer: object, reply: str, reward: float) -> None:
    assert score("exact", problem(answer=answer), reply, take="number") == reward


def test_exact_takes_any_of_several_answers() -> None:
    several = problem(capital=["Berlin", "Bonn"])
    assert [score("exact", several, reply, field="capital") for reply in ("Bonn", "Berlin", "Berlin, Bonn")] == [
        1,
        1,
        0,
    ]


def test_exact_wants_a_number_of_the_problem_too() -> None:
    with pytest.raises(ValueError, match=r"take: 'answer' of problem.data has no number"):
        score("exact", problem(answer="Paris"), "1", take="number")


def common_by_table(one: str, other: str) -> int:
    """The textbook's way."""
    table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, left in enumerate(one):
        for j, right in enumerate(other):
            table[i + 1][j + 1] = table[i][j] + 1 if left == right else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


@given(st.text(alphabet="abc", max_size=30), st.text(alphabet="abc", max_size=30))
def test_the_common_subsequence_is_that_of_the_textbook(one: str, other: str) -> None:
    assert _common(one, other) == common_by_table(one, other)


@pytest.mark.parametrize(
    ("reply", "parameters", "reward"),
    [
        ("abcd", {}, 1),
        ("abxd", {}, 6 / 8),
        ("ABCD", {"ignore_case": True}, 1),
        ("dcba", {}, 2 / 8),
        ("", {}, 0),
        ("xyz", {}, 0),
        ("abxd", {"floor": 0.5}, 0.5),
        ("dcba", {"floor": 0.5}, 0),
        ("<answer>abcd</answer>", {"tag": "answer"}, 1),
    ],
)
def test_fuzzy_is_twice_what_is_common_over_both_lengths(reply: str, parameters: dict[str, Any], reward: float) -> None:
    assert score("fuzzy", problem(answer="abcd"), reply, **parameters) == pytest.approx(reward)


def test_fuzzy_compares_words_too() -> None:
    assert score("fuzzy", problem(answer="the cat sat"), "the dog sat", by="words") == pytest.approx(4 / 6)


def test_fuzzy_gives_one_to_a_long_text_that_is_right_and_little_to_a_longer_one() -> None:
    text = "ab" * 50_000
    assert score("fuzzy", problem(answer=text), text) == 1
    assert score("fuzzy", problem(answer="ab"), text) < 0.001


@pytest.mark.parametrize(
    ("reply", "parameters", "reward"),
    [
        ("<answer>1</answer>", {}, 1),
        ("well <answer>1</answer>\n", {}, 1),
        ("<answer>1</answer> well", {}, 0),
        ("<answer>1</answer> well", {"other_text": "anywhere"}, 1),
        ("well <answer>1</answer>", {"other_text": "nowhere"}, 0),
        ("\n<answer>1</answer>", {"other_text": "nowhere"}, 1),
        ("<answer>1</answer><answer>2</answer>", {}, 0),
        ("<answer> </answer>", {}, 0),
        ("<answer>1", {}, 0),
        ("1</answer>", {}, 0),
        ("</answer>1<answer>", {}, 0),
        ("<a>1</a><b>2</b>", {"tag": ["a", "b"]}, 1),
        ("<b>2</b><a>1</a>", {"tag": ["a", "b"]}, 0),
        ("<a>1<b>2</b></a>", {"tag": ["a", "b"]}, 0),
        ("<a>1</a> so <b>2</b>", {"tag": ["a", "b"], "other_text": "nowhere"}, 0),
        ("<think>1</think><answer>2</answer>", {"tag": ["think", "answer"], "other_text": "nowhere"}, 1),
        ("<answer>2</answer>", {"tag": ["think", "answer"]}, 0),
    ],
)
def test_tagged_wants_each_tag_once_and_in_order(reply: str, parameters: dict[str, Any], reward: float) -> None:
    assert score("tagged", problem(), reply, **parameters) == reward


def test_tagged_takes_reasoning_that_was_told_apart_for_a_thought() -> None:
    told_apart = rollout("<answer>2</answer>", thought="1")
    assert score("tagged", problem(), told_apart, tag=["think", "answer"]) == 1


@pytest.mark.parametrize(
    ("reply", "parameters", "reward"),
    [
        ("on 2026-11-25.", {}, 1),
        ("on 2026-11-25.", {"whole": True}, 0),
        ("2026-11-25", {"whole": True}, 1),
        ("<d>2026-11-25</d> or 1", {"whole": True, "tag": "d"}, 1),
        ("2026-11", {}, 0),
        ("2026-11-25\ud800", {}, 1),
    ],
)
def test_matches_searches_or_matches_all(reply: str, parameters: dict[str, Any], reward: float) -> None:
    assert score("matches", problem(), reply, pattern=r"\d{4}-\d\d-\d\d", **parameters) == reward


def test_a_pattern_that_doubles_with_every_letter_elsewhere_takes_linear_time() -> None:
    # Python's re would need 2**100_000 steps: that this ends at all is the proof.
    assert score("matches", problem(), "a" * 100_000 + "b", pattern="^(a+)+$") == 0


def test_a_pattern_that_is_none_is_named() -> None:
    with pytest.raises(InvalidArguments, match=r"pattern: RE2 refuses it: missing \)"):
        score("matches", problem(), "x", pattern="(")


def test_an_argument_that_a_reward_does_not_take_is_refused_at_the_start() -> None:
    with pytest.raises(RegistryError, match=r"'exact'.*take"):
        score("exact", problem(answer="x"), "x", take="everything")
