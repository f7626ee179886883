"""Matches of OpenSpiel between policies, with the real library in a process of its own."""

import pytest

from environments.config import SamplingParams
from tests.environments.bridges.games import Games, told

pytestmark = pytest.mark.slow  # a process of another virtual environment

# The first takes the left column, the second the middle one.
CELLS = ["x(0,0)", "o(0,1)", "x(1,0)", "o(1,1)", "x(2,0)"]
TIC_TAC_TOE = {"game": "tic_tac_toe"}


def test_every_seat_moves_in_turn_and_leaves_a_rollout_with_what_it_won(games: Games) -> None:
    first, second = games.play("open_spiel_match", TIC_TAC_TOE, CELLS).rollouts
    assert (first.seat, second.seat) == ("player_0", "player_1")
    assert (first.reward, second.reward) == (1.0, 0.0)
    assert [each.metrics["won"] for each in (first, second)] == [1.0, 0.0]
    assert [each.metrics["steps"] for each in (first, second)] == [3.0, 2.0]
    assert told(first)[1].startswith("Player 1: o(0,1)\n\nxo.\n...\n...\n\nLegal actions: x(0,2)")
    assert told(second)[0].startswith("Player 0: x(0,0)\n\nx..\n...\n...\n\nLegal actions: o(0,1)")


def test_a_move_that_is_none_is_answered_and_costs_what_the_arguments_say(games: Games) -> None:
    args = TIC_TAC_TOE | {"invalid_penalty": 0.25}
    first, second = games.play("open_spiel_match", args, ["x(0,0)", "x(0,0)", *CELLS[1:]]).rollouts
    assert told(second)[1].startswith("'x(0,0)' is not a legal action. Legal actions: o(0,1)")
    assert (first.reward, second.reward, second.metrics["invalid_actions"]) == (1.0, -0.25, 1.0)


def test_a_match_that_is_stalled_is_lost_by_all(games: Games) -> None:
    rollouts = games.play("open_spiel_match", TIC_TAC_TOE | {"max_steps": 2}, CELLS).rollouts
    assert [(each.reward, each.metrics["truncated"], each.metrics["won"]) for each in rollouts] == [(0.0, 1.0, 0.0)] * 2


def test_who_may_not_reply_any_more_has_lost_to_the_others(games: Games) -> None:
    rollouts = games.play("open_spiel_match", TIC_TAC_TOE, CELLS, sampling=SamplingParams(max_turns=2)).rollouts
    assert [(each.reward, each.metrics["return"], each.metrics["won"]) for each in rollouts] == [
        (0.0, -1.0, 0.0),
        (1.0, 1.0, 1.0),
    ]


def test_what_is_hidden_is_told_to_nobody_else(games: Games) -> None:
    # An information state of Kuhn poker is the seat's own card and the bets.
    rollouts = games.play("open_spiel_match", {"game": "kuhn_poker"}, ["Pass", "Bet", "Bet"]).rollouts
    seen = [[text.splitlines()[0] for text in told(each)] for each in rollouts]
    assert [[each[1:] for each in texts] for texts in seen] == [["", "pb"], ["p"]]
    assert seen[0][0][0] == seen[0][1][0] != seen[1][0][0]
    assert sum(each.metrics["return"] for each in rollouts) == 0
    assert not any("Player" in text for each in rollouts for text in told(each))


def test_chess_has_two_seats_and_leduc_poker_as_many_as_it_is_played_by(games: Games) -> None:
    # OpenSpiel's player 1 has white, and begins.
    black, white = games.play("open_spiel_match", {"game": "chess"}, ["f3", "e5", "g4", "Qh4#"]).rollouts
    assert (white.reward, black.reward, black.metrics["won"]) == (0.0, 1.0, 1.0)
    three = games.play("open_spiel_match", {"game": "leduc_poker(players=3)"}, ["Fold", "Call"]).rollouts
    assert [each.seat for each in three] == ["player_0", "player_1", "player_2"]
