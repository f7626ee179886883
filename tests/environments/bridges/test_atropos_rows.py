"""Which rollout a scored sequence is about, where it trains the last reply only and was made of text."""

import asyncio
from collections.abc import Sequence

import pytest

from environments.bridges.atropos_rows import ScoredRow, match
from environments.bridges.atropos_table import Reply, Seat
from environments.errors import RewardError


def decode(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


def seat(*texts: str) -> Seat:
    replies: list[Reply] = []
    for text in texts:
        before = replies[-1] if replies else None
        said = (before.whole if before else ()) + ("?", text)
        replies.append(Reply(before, said, [len(text), *map(ord, text)], text))
    return Seat(replies=replies)


def row(score: float, *texts: str) -> ScoredRow:
    tokens = [*map(ord, "".join(f"\n? {text}" for text in texts))]
    return ScoredRow(tokens, [*map(ord, texts[-1])], score, {})


def scores(rows: Sequence[ScoredRow], *rollouts: Sequence[str]) -> list[list[float]]:
    async def matched() -> list[list[float]]:
        seats = [seat(*texts) for texts in rollouts]
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
        scores([row(1.0, "abc", "yes")], ("ab", "yes"), ("abc", "yes"))


def test_rollouts_that_are_alike_throughout_get_one_row_each() -> None:
    rows = [row(1.0, "ab", "yes"), row(1.0, "ab", "yes")]
    assert scores(rows, ("ab", "yes"), ("ab", "yes")) == [[1.0], [1.0]]
