"""blackjack: hands by the rules, each of the same cards for every episode of a group."""

import asyncio
import random

import pytest

from environments import registry
from environments.kit import played
from environments.library.blackjack import Blackjack, CardTable, basic_strategy, total
from environments.types import Message, Problem, Split, StopReason
from tests.environments.library_games.games import mean, said, solved

HIT, STAND = "<action>hit</action>", "<action>stand</action>"
REST = "2" * 20


def blackjack(**args: object) -> Blackjack:
    environment = registry.load("blackjack", args)
    assert isinstance(environment, Blackjack)
    return environment


def hands(*packs: str) -> Problem:
    """Hands of these cards: two of the player, two of the dealer, then what is drawn."""
    data = {"packs": [pack + REST for pack in packs]}
    return Problem(key="hands", messages=[Message("user", CardTable(data["packs"]).shown)], data=data)


@pytest.mark.parametrize(
    ("cards", "count"),
    [("23", 5), ("TK", 20), ("A9", 20), ("AA", 12), ("AK", 21), ("A9A", 21), ("A9AA", 12), ("TTTA", 31), ("A23", 16)],
)
def test_an_ace_is_eleven_where_that_is_not_too_much(cards: str, count: int) -> None:
    assert total(cards) == count


@pytest.mark.parametrize(
    ("pack", "replies", "reward"),
    [
        ("T9T8", [STAND], 1.0),
        ("T9T9", [STAND], 0.5),
        ("T8T9", [STAND], 0.0),
        ("T6T9" + "4", [HIT, STAND], 1.0),
        ("T6T9" + "6", [HIT], 0.0),  # above 21, whatever the dealer has
        ("T6T9" + "5", [HIT], 1.0),  # 21 asks for no further decision
        ("T2T6" + "T", [STAND], 1.0),  # the dealer draws at 16, and is above 21
        ("T8A6" + "T", [STAND], 1.0),  # and stands on 17, although its ace could be one
        ("T8T2" + "A4T", [STAND], 1.0),  # 12, 13, 17
        ("T6AK" + "5", [HIT], 0.5),  # a dealer's 21 of two cards is a 21 like any other
    ],
)
def test_outcomes(pack: str, replies: list[str], reward: float) -> None:
    problem = hands(pack)
    rollout = asyncio.run(played(blackjack(), problem, replies, max_turns=len(replies)))
    assert (rollout.reward, rollout.stop_reason) == (reward, StopReason.STOP)
    assert rollout.metrics["won"] == float(reward == 1.0)
    assert rollout.metrics["drawn"] == float(reward == 0.5)


@pytest.mark.parametrize(
    "reply", ["", "stand", "<action>double</action>", f"<think>{STAND}</think>", f"<think>{STAND}", "<action>stand"]
)
def test_a_reply_without_an_action_loses_the_hand(reply: str) -> None:
    problem = hands("TTT8", "TTT8")
    rollout = asyncio.run(played(blackjack(), problem, [reply, STAND], max_turns=2))
    assert rollout.reward == 0.5
    assert rollout.metrics["invalid_actions"] == 1.0
    assert "neither hit nor stand" in rollout.messages[2].text


def test_hands_that_were_not_played_to_their_end_are_lost() -> None:
    problem = hands("TTT8", "TTT8", "23T8")
    rollout = asyncio.run(played(blackjack(), problem, [STAND], max_turns=1))
    assert rollout.reward == pytest.approx(1 / 3)
    rollout = asyncio.run(played(blackjack(), problem, [STAND, STAND, HIT], max_turns=3))
    assert (rollout.reward, rollout.stop_reason) == (pytest.approx(2 / 3), StopReason.TURNS)


def test_the_player_sees_the_dealers_first_card_and_at_the_end_all_of_them() -> None:
    problem = hands("T6T9" + "3", "52Q8")
    assert problem.messages[0].text == "Hand 1 of 2. Your cards: T 6 (16). The dealer shows T."
    rollout = asyncio.run(played(blackjack(), problem, [HIT, STAND], max_turns=3))
    told = [message.text for message in rollout.messages if message.role == "user"]
    assert told[1:] == [
        "Hand 1 of 2. Your cards: T 6 3 (19). The dealer shows T.",
        "Your cards: T 6 3 (19). Dealer's cards: T 9 (19). A draw.\n"
        "Hand 2 of 2. Your cards: 5 2 (7). The dealer shows Q.",
    ]


def test_a_pack_has_52_cards_and_does_not_begin_with_21() -> None:
    environment = blackjack(hands=3)
    for index in range(100):
        packs = environment.problem(Split.TRAIN, index).data["packs"]
        assert len(packs) == 3
        for pack in packs:
            assert sorted(pack) == sorted("A23456789TJQK" * 4)
            assert total(pack[:2]) < 21


def test_problems_are_the_same_in_every_process_and_version() -> None:
    environment = blackjack()
    assert environment.problem(Split.TRAIN, 0).key == "c5b5ccde93e2cca9"
    assert environment.problem(Split.TRAIN, 0).data["packs"][0][:8] == "2TQJJ42Q"
    assert environment.problem(Split.EVAL, 7) == blackjack().problem(Split.EVAL, 7)
    packs = {split: {environment.problem(split, index).key for index in range(200)} for split in Split}
    assert packs[Split.TRAIN].isdisjoint(packs[Split.EVAL])


@pytest.mark.parametrize(
    ("player", "dealer", "action"),
    [
        ("T7", "A", "stand"),
        ("T6", "7", "hit"),
        ("T6", "6", "stand"),
        ("T3", "2", "stand"),
        ("T2", "3", "hit"),
        ("T2", "4", "stand"),
        ("92", "6", "hit"),
        ("A7", "8", "stand"),
        ("A7", "9", "hit"),
        ("A8", "A", "stand"),
        ("A6", "2", "hit"),
        ("A6T", "7", "stand"),
    ],
)
def test_basic_strategy_is_the_known_table(player: str, dealer: str, action: str) -> None:
    assert basic_strategy(player, dealer) == action


def test_players_earn_what_the_card_says() -> None:
    environment = blackjack()
    rng = random.Random("games")
    solving = mean(environment, 400, lambda problem: solved(environment, problem))
    standing = mean(environment, 400, lambda _: [STAND] * 5)
    guessing = mean(environment, 400, lambda _: [rng.choice([HIT, STAND]) for _ in range(60)])
    # An outcome varies by at most .5, so the mean of 2,000 hands by about .011.
    assert solving == pytest.approx(0.45, abs=0.04)
    assert standing == pytest.approx(0.37, abs=0.04)
    assert guessing == pytest.approx(0.31, abs=0.04)


def test_a_reply_in_the_wrong_place_is_not_played() -> None:
    problem = hands("TTT8")
    assert blackjack().reward(problem, said(problem, STAND, HIT, HIT)) == 1.0
