"""Which rollout a scored sequence is about, where it trains the last reply only and was made of text."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from environments.bridges.atropos_rows import ScoredRow, match, rows_of, score_of
from environments.bridges.atropos_table import Reply, Seat
from environments.errors import ProblemError, RewardError


def decode(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


def seat(*texts: str, asked: str = "?") -> Seat:
    replies: list[Reply] = []
    for text in texts:
        before = replies[-1] if replies else None
        said = (before.whole if before else ()) + (("user", asked, ""), ("assistant", text, ""))
        replies.append(Reply(before, said, [len(text), *map(ord, text)], text))
    return Seat(replies=replies)


def row(score: float, *texts: str, asked: str = "?") -> ScoredRow:
    tokens = [*map(ord, "".join(f"\n{asked} {text}" for text in texts))]
    return ScoredRow(tokens, [*map(ord, texts[-1])], score, {})


def scores(rows: Sequence[ScoredRow], *rollouts: Sequence[str], asked: str = "?") -> list[list[float]]:
    async def matched() -> list[list[float]]:
        seats = [seat(*texts, asked=asked) for texts in rollouts]
        found = match(rows, seats, decode)
        return [[each.score for each in found.get(seat, [])] for seat in seats]

    return asyncio.run(matched())


def test_of_rollouts_that_end_alike_each_gets_the_row_of_its_own_beginning() -> None:
    rows = [row(1.0, "cd", "yes"), row(0.0, "ab", "yes")]
    assert scores(rows, ("ab", "yes"), ("cd", "yes")) == [[0.0], [1.0]]


def test_a_row_that_may_be_about_several_is_refused() -> None:
    with pytest.raises(RewardError, match="may be about 2 rollouts"):
        scores([row(1.0, "yes")], ("ab", "yes"), ("cd", "yes"))
    with pytest.raises(RewardError, match="may be about 2 rollouts"):
        scores([row(1.0, "no", "yes", asked="Yes or no!")], ("yes",), ("no", "yes"))


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("asked", ["?", "Say no or yes, no or yes:"])
@pytest.mark.parametrize("first", [("yes",), ("n", "yes"), ("yes", "yes")])
def test_a_row_is_about_the_rollout_that_said_all_of_it(first: Sequence[str], asked: str, order: int) -> None:
    second = ("no", "yes")
    rows = [row(1.0, *first, asked=asked), row(0.0, *second, asked=asked)][::order]
    assert scores(rows, first, second, asked=asked) == [[1.0], [0.0]]
    assert scores(rows, second, first, asked=asked) == [[0.0], [1.0]]


def test_rollouts_that_were_told_different_things_are_told_apart_by_them() -> None:
    async def matched() -> list[float]:
        seats = [seat("yes", "yes", asked=asked) for asked in ("cold", "warm")]
        found = match(
            [row(score, "yes", "yes", asked=asked) for score, asked in ((1, "warm"), (0, "cold"))], seats, decode
        )
        return [each.score for seat in seats for each in found[seat]]

    assert asyncio.run(matched()) == [0.0, 1.0]


def test_a_row_of_other_words_than_were_asked_is_known_by_the_replies() -> None:
    rows = [row(1.0, "cd", "yes", asked="Now"), row(0.0, "ab", "yes", asked="Now")]
    assert scores(rows, ("ab", "yes"), ("cd", "yes")) == [[0.0], [1.0]]


def test_rollouts_that_are_alike_throughout_get_one_row_each() -> None:
    rows = [row(1.0, "ab", "yes"), row(1.0, "ab", "yes")]
    assert scores(rows, ("ab", "yes"), ("ab", "yes")) == [[1.0], [1.0]]


def scored(**values: Any) -> dict[str, Any]:
    return {"tokens": [[1, 2]], "masks": [[-100, 2]], "scores": [1.0], **values}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"images": ["png"]}, "gives images, which have no place here. Serve it at a run's own Atropos address"),
        ({"group_overrides": {"sft": True, "group_size": 1}}, "group_overrides sft: only a trainer of Atropos"),
    ],
)
def test_what_a_group_asks_of_its_trainer_is_refused_by_name(values: dict[str, Any], told: str) -> None:
    with pytest.raises(ProblemError, match=told):
        rows_of(scored(**values))


def test_what_a_row_asks_of_its_trainer_is_refused_with_the_place_that_takes_it() -> None:
    async def worth(**values: Any) -> float:
        return score_of(seat("yes"), rows_of(scored(**values)))

    with pytest.raises(
        RewardError, match=r"overrides set_advantage_to_zero have no place .* of kind rl it takes set_adv"
    ):
        asyncio.run(worth(overrides=[{"set_advantage_to_zero": True, "x": False}], group_overrides={"group_size": 1}))
    asked = {
        "overrides": [{"set_advantage_to_zero": False}],
        "images": [],
        "distill_logprobs": [[]],
        "advantages": None,
    }
    assert asyncio.run(worth(**asked)) == 1.0
