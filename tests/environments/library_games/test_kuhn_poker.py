"""kuhn_poker: the game by its rules, its equilibrium, and how much a strategy can be beaten by."""

import asyncio
import math
from itertools import product
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments import registry
from environments.config import SamplingParams
from environments.env import Environment
from environments.fakes import ScriptedPolicy
from environments.library.kuhn_poker import game
from environments.library.kuhn_poker.environment import KuhnPoker
from environments.runner import play_group
from environments.types import PlayedRollout, Problem, Split, StopReason

PASS, BET = "<action>pass</action>", "<action>bet</action>"


def kuhn_poker(**args: object) -> KuhnPoker:
    environment = registry.load("kuhn_poker", args)
    assert isinstance(environment, KuhnPoker)
    return environment


def match(*replies: str, deal: str = "KQ", history: str = "", max_turns: int = 2) -> list[PlayedRollout]:
    """A match of one deal in which these are said in turn."""
    environment = kuhn_poker()
    posed = environment.problem(Split.TRAIN, game.DEALS.index(deal))
    problem = Problem(key="p", messages=posed.messages, data=posed.data | {"history": history})
    sampling = SamplingParams(max_turns=max_turns)
    return asyncio.run(play_group(environment, problem, ScriptedPolicy(replies), sampling, 1, deadline_s=5))


@pytest.mark.parametrize(
    ("replies", "won"),
    [
        ([PASS, PASS], 1.0),
        ([PASS, BET, PASS], -1.0),
        ([PASS, BET, BET], 2.0),
        ([BET, PASS], 1.0),
        ([BET, BET], 2.0),
        (["I bet."], -2.0),  # no action
        ([PASS, "I bet."], 2.0),
        ([PASS, BET, "<think><action>bet</action></think>"], -2.0),
    ],
)
def test_outcomes(replies: list[str], won: float) -> None:
    first, second = match(*replies)
    assert (first.seat, second.seat) == ("first", "second")
    assert (first.reward, second.reward) == (won, -won)
    beaten = match(*replies, deal="QK")
    is_showdown = replies[-2:] in ([PASS, PASS], [BET, BET])
    assert beaten[0].reward == (-won if is_showdown else won)


def test_each_knows_its_own_card_and_what_the_other_did() -> None:
    first, second = match(PASS, BET, BET)
    told = [message.text for message in first.messages if message.role == "user"]
    assert told[0].endswith("You have K. You begin.")
    assert told[1] == "The other bet."
    assert second.messages[0].text.endswith("You have Q. The other passed.")
    assert "K." not in second.messages[0].text.replace("J, Q, K", "")
    assert first.metrics == {"bet/K": 0.0, "illegal/K": 0.0, "bet/Kpb": 1.0, "illegal/Kpb": 0.0}


def test_who_is_out_of_turns_loses_the_most() -> None:
    first, second = match(PASS, BET, max_turns=1)
    assert (first.reward, second.reward) == (-2.0, 2.0)
    assert first.stop_reason is StopReason.TURNS
    assert first.metrics["illegal/Kpb"] == 1.0


def test_held_out_matches_begin_at_every_position() -> None:
    environment = kuhn_poker()
    problems = [environment.problem(Split.EVAL, index) for index in range(environment.count(Split.EVAL))]
    assert len({problem.key for problem in problems}) == 24
    known = {(each.data["deal"][len(each.data["history"]) % 2] + each.data["history"]) for each in problems}
    assert known == set(game.INFORMATION_SETS)
    first, second = match(BET, history="pb")
    assert [message.role for message in first.messages] == ["user", "assistant", "user", "assistant"]
    assert (sum(first.loss_mask), second.token_ids, second.reward) == (len(BET) + 1, [], -2.0)


def test_the_toss_of_a_coin_and_pure_strategies_are_beaten_by_known_amounts() -> None:
    assert game.exploitability(game.uniform()) == pytest.approx(11 / 24)
    assert game.exploitability(game.novice()) == pytest.approx(7 / 27)
    passing, betting = ({known: {move: 1.0} for known in game.INFORMATION_SETS} for move in game.MOVES)
    assert game.exploitability(passing) == pytest.approx(1.0)
    assert game.exploitability(betting) == pytest.approx(1 / 3)
    forfeiting = {known: {game.ILLEGAL: 1.0} for known in game.INFORMATION_SETS}
    assert game.exploitability(forfeiting) == pytest.approx(2.0)


def test_no_move_at_all_loses_more_than_any_pass() -> None:
    for deal, history in game.positions():
        own = -1 if game.mover(history) else 1
        silent, passed = own * game.chips(deal, history + game.ILLEGAL), history + game.PASS
        assert silent == -2
        assert not game.is_over(passed) or silent < own * game.chips(deal, passed)


@given(st.floats(0, 1 / 3))
def test_no_answer_beats_an_equilibrium(bluff: float) -> None:
    assert game.exploitability(game.equilibrium(bluff)) == pytest.approx(0.0, abs=1e-12)


@given(st.lists(st.floats(0, 1), min_size=12, max_size=12))
def test_the_best_answer_is_the_best_of_all_pure_ones(shares: list[float]) -> None:
    """Every pure strategy of a seat, 64 of them, against a mixed one, by walking through all deals."""
    mixed = {
        known: {game.PASS: 1 - share, game.BET: share}
        for known, share in zip(game.INFORMATION_SETS, shares, strict=True)
    }
    best = []
    for seat, own in ((0, ["", "pb"]), (1, ["p", "b"])):
        places = [card + history for card in game.CARDS for history in own]
        best.append(
            max(
                value(mixed | {place: {move: 1.0} for place, move in zip(places, moves, strict=True)}) * (1 - 2 * seat)
                for moves in product(game.MOVES, repeat=len(places))
            )
        )
    assert game.exploitability(mixed) == pytest.approx(sum(best) / 2, abs=1e-9)


def value(strategy: game.Strategy) -> float:
    """Chips a match that the first seat wins where both play a strategy."""

    def walk(deal: str, history: str, share: float) -> float:
        if game.is_over(history):
            return share * game.chips(deal, history)
        moves = strategy[deal[game.mover(history)] + history]
        return sum(walk(deal, history + move, share * often) for move, often in moves.items())

    return sum(walk(deal, "", 1 / 6) for deal in game.DEALS)


def test_an_equilibrium_against_itself_loses_an_eighteenth_in_the_first_seat() -> None:
    assert value(game.equilibrium()) == pytest.approx(game.VALUE)
    assert value(game.uniform()) == pytest.approx(1 / 8)


def test_solutions_are_played_by_the_equilibrium_by_the_toss_of_a_coin_or_by_the_card_alone() -> None:
    def bets(environment: Environment[object], card: str) -> float:
        """How often the first seat begins with a bet."""
        solved = [environment.match_solution(environment.problem(Split.TRAIN, index)) for index in range(900)]
        firsts = [each["first"] for each in solved if each is not None]
        return fmean(each[1].text == BET for each in firsts if f"have {card}" in each[0].text)

    assert bets(kuhn_poker(), "Q") == 0.0
    assert bets(kuhn_poker(), "K") == 1.0
    assert math.isclose(bets(kuhn_poker(solutions="uniform"), "Q"), 0.5, abs_tol=0.1)
    novice = kuhn_poker(solutions="novice")
    assert [bets(novice, card) for card in game.CARDS] == pytest.approx([1 / 3, 1 / 2, 2 / 3], abs=0.1)


def test_an_evaluation_has_its_exploitability_once_every_information_set_was_seen() -> None:
    strategy = game.equilibrium()
    means = {f"bet/{known}": moves[game.BET] for known, moves in strategy.items()}
    means |= {f"illegal/{known}": 0.0 for known in strategy}
    assert KuhnPoker.overall(means) == {"exploitability": pytest.approx(0.0, abs=1e-12)}
    assert KuhnPoker.overall(means | {"illegal/K": 1.0, "bet/K": 0.0})["exploitability"] > 0.1
    del means["bet/Jpb"]
    assert KuhnPoker.overall(means) == {}
