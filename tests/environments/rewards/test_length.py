"""length and repetition: penalties from 0 to 1, of what the policy wrote and nobody else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.errors import InvalidArguments
from environments.types import FinishedRollout, Message
from tests.environments.rewards.replying import problem, rollout, score, spoken


def sampled(tokens: list[int], mask: list[int] | None = None) -> FinishedRollout:
    mask = mask or [1] * len(tokens)
    return FinishedRollout(token_ids=tokens, loss_mask=mask, inference_logprobs=[0.0] * len(tokens))


@pytest.mark.parametrize(("count", "penalty"), [(0, 0), (100, 0), (150, 0.5), (200, 1), (10_000, 1)])
def test_length_is_linear_between_its_limits(count: int, penalty: float) -> None:
    assert score("length", problem(), sampled([1] * count), soft=100, hard=200) == penalty
    assert score("length", problem(), "x" * count, soft=100, hard=200, by="characters") == penalty


def test_length_counts_sampled_tokens_only() -> None:
    assert score("length", problem(), sampled([1] * 20, [0, 1] * 10), soft=0, hard=20) == 0.5


def test_length_counts_thoughts_and_every_turn_and_not_what_others_said() -> None:
    thinking = rollout("x" * 10, thought="y" * 9)
    assert score("length", problem(), thinking, soft=0, hard=40, by="characters") == 0.5  # and a line break between
    turns = [
        *problem().messages,
        Message("assistant", "x" * 10),
        Message("user", "z" * 99),
        Message("assistant", "x" * 9),
    ]
    assert score("length", problem(), spoken(turns), soft=0, hard=40, by="characters") == 0.5


def test_limits_in_the_wrong_order_are_named() -> None:
    with pytest.raises(InvalidArguments, match="hard: 10 has to be above soft, 10"):
        score("length", problem(), "x", soft=10, hard=10)


@pytest.mark.parametrize(
    ("reply", "n", "share"),
    [
        ("a b c d", 2, 0),
        ("a b a b a b", 2, 3 / 5),
        ("a a a a a", 1, 4 / 5),
        ("a b", 4, 0),
        ("", 1, 0),
    ],
)
def test_repetition_is_the_share_of_ngrams_that_were_there_before(reply: str, n: int, share: float) -> None:
    words = {word: number for number, word in enumerate(sorted(set(reply.split())))}
    tokens = [words[word] for word in reply.split()]
    assert score("repetition", problem(), reply, by="words", n=n) == pytest.approx(share)
    assert score("repetition", problem(), reply.replace(" ", ""), by="characters", n=n) == pytest.approx(share)
    assert score("repetition", problem(), sampled(tokens), n=n) == pytest.approx(share)


def test_repetition_does_not_count_what_others_said() -> None:
    assert score("repetition", problem(), sampled([1, 7, 2, 7, 3, 7], [1, 0, 1, 0, 1, 0]), n=1) == 0


def test_a_loop_at_the_end_of_a_long_text_is_found() -> None:
    assert score("repetition", problem(), "x" * 10**6, by="characters") > 0.999


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 6))
def test_repetition_is_a_share(tokens: list[int], n: int) -> None:
    found = score("repetition", problem(), sampled(tokens), n=n)
    grams = [tuple(tokens[at : at + n]) for at in range(len(tokens) - n + 1)]
    assert found == pytest.approx(sum(gram in grams[:at] for at, gram in enumerate(grams)) / max(1, len(grams)))
