"""choice: one letter, however it is said; several are none, and an article is no letter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.rewards.choice import chosen
from tests.environments.rewards.replying import problem, score


@pytest.mark.parametrize(
    "reply",
    [
        "B",
        "b",
        "(b)",
        "(B).",
        "B.",
        "**B**",
        "B) Paris",
        "B. A fine town",
        "The answer is B.",
        "the answer is (b)",
        "the answer is b",
        "The answer is therefore B.",
        "Answer: B",
        "**Answer:** B",
        "Final answer: **B**",
        "Answer (B)",
        'The answer is "B"',
        "The answer is $B$.",
        "The answer is\n\nB",
        "The correct answer is option B",
        "The correct option is (B)",
        "The answer is B: the moon",
        "The answer is B, not C.",
        r"\boxed{B}",
        r"$\boxed{\text{B}}$",
        r"\boxed{\textbf{(B)}}",
        r"The answer is \(\boxed{B}\).",
        "<answer>B</answer>",
        "<answer>\n(b)\n</answer>",
        "<answer>B: the moon</answer>",
        "A is too small, C is too big. The answer is B.",
        "It cannot be (A) or (C), thus <answer>B</answer>",
        "It is B, I'm sure",
        "I think it's (B).",
        "<think>The answer is A.</think>B",
        r"Answer choice A is wrong, and so is C. \boxed{B}",
        r"If the answer was A, it would fall. \boxed{B}",
        r"The answer is A. No: \boxed{B}",
        r"\boxed{B. vitamin A}",
        "<answer>B. hepatitis A</answer>",
        r"\boxed{\mathbf{B}}",
        r"\boxed{\mathrm{B}}",
        r"\boxed{\text{ B }}",
        r"\boxed{Option B}",
    ],
)
def test_a_letter_is_found_however_it_is_said(reply: str) -> None:
    assert score("choice", problem(answer="B"), reply) == 1


@pytest.mark.parametrize(
    "reply", ["A", "a", "A.", "(a)", "A. A dog", "The answer is A because", "So A", "the answer is a."]
)
def test_the_letter_that_is_an_article_is_found_too(reply: str) -> None:
    assert chosen(reply) == "A"


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "A good question. I think so.",
        "A dog runs.",
        "The answer is a dog.",
        "<answer>a dog</answer>",
        "<answer>The moon</answer>",
        "Answer: Bananas",
        "The answer is not B.",
        "abcd",
        "ABCD",
        "Grade A- and plan B-2",
    ],
)
def test_no_letter_is_found_where_none_is_named(reply: str) -> None:
    assert chosen(reply) is None


@pytest.mark.parametrize(
    "reply",
    [
        "A, B, C, D",
        "A or B",
        "A) London B) Paris",
        "The answer is A. The answer is B.",
        "The answer is A or B.",
        "The answer is (A) and (B).",
        r"\boxed{A} \boxed{B}",
        r"\boxed{A,B}",
        "<answer>A B C D</answer>",
        "<answer>A</answer><answer>B</answer>",
        "<answer>A dog or B</answer>",
        "<answer>A) London B) Paris</answer>",
        r"\boxed{(A) and (B)}",
        "Answer A is incorrect. B is right.",
        r"<answer>A</answer> \boxed{B}",
        "It can't be A. It is B.",
        "Because A is small and B is big",
    ],
)
def test_several_letters_are_none(reply: str) -> None:
    assert chosen(reply) is None


@given(st.text(alphabet="ABab .,()*\n'answeris{}<>/\\boxed", max_size=80))
def test_no_reply_is_right_for_two_letters(reply: str) -> None:
    assert sum(score("choice", problem(answer=letter), reply) for letter in "ABCD") in (0, 1)


def test_more_letters_may_be_asked_for() -> None:
    assert score("choice", problem(answer="(J)"), "The answer is J.", letters="ABCDEFGHIJ") == 1
    assert chosen("I think so.", "ABCDEFGHIJ") is None


def test_an_answer_that_is_no_choice_is_named() -> None:
    with pytest.raises(ValueError, match=r"letters: 'E', the 'answer' of problem.data, is none of ABCD"):
        score("choice", problem(answer="e"), "B")
