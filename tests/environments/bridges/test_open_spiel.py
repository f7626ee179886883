"""The bridge to OpenSpiel, with the real library in a process of its own."""

import pytest

from environments.config import SamplingParams
from environments.errors import RegistryError
from environments.types import Split
from tests.environments.bridges.games import Games, told

pytestmark = pytest.mark.slow  # a process of another virtual environment

ANY_CELL = [f"{mark}({row},{column})" for mark in "xo" for row in range(3) for column in range(3)]
WORDY = SamplingParams(max_turns=50, max_tokens=6_000)
KUHN = {"game": "kuhn_poker"}


def test_a_game_is_played_from_the_seat_that_the_seed_names(games: Games) -> None:
    first = games.play("open_spiel", {"game": "tic_tac_toe"}, ANY_CELL, index=0)
    second = games.play("open_spiel", {"game": "tic_tac_toe"}, ANY_CELL, index=1)
    assert [first.problem.key, second.problem.key] == ["tic_tac_toe:0", "tic_tac_toe:1"]
    assert told(first.rollouts[0])[0].startswith("...\n...\n...\n\nLegal actions: x(0,0), x(0,1)")
    assert told(second.rollouts[0])[0].startswith("Player 0: x(")
    assert [played.rollouts[0].metrics["seat"] for played in (first, second)] == [0.0, 1.0]


def test_the_same_moves_end_the_same_game_the_same_way(games: Games) -> None:
    played = games.play("open_spiel", {"game": "connect_four", "max_steps": 30}, ["x0", "x1", "x2", "x3", "x4"])
    again = games.play("open_spiel", {"game": "connect_four", "max_steps": 30}, ["x0", "x1", "x2", "x3", "x4"])
    assert told(played.rollouts[0]) == told(again.rollouts[0])
    assert played.rollouts[0].metrics == again.rollouts[0].metrics
    assert played.rollouts[0].metrics["terminated"] == 1.0


@pytest.mark.parametrize(("index", "opens"), [(0, "x"), (1, "o")])
def test_a_search_beats_a_policy_that_takes_the_first_free_cell(games: Games, index: int, opens: str) -> None:
    cells = [cell for cell in ANY_CELL if cell.startswith(opens)]
    args = {"game": "tic_tac_toe", "opponent": "mcts", "mcts_simulations": 200}
    [rollout] = games.play("open_spiel", args, cells, index=index).rollouts
    assert (rollout.reward, rollout.metrics["return"], rollout.metrics["won"]) == (0.0, -1.0, 0.0)


def test_what_is_hidden_from_a_seat_is_hidden_from_the_policy(games: Games) -> None:
    # Kuhn poker: an information state is the seat's own card and the bets, "0pb".
    problems = games.problems("open_spiel", KUHN, range(1, 21, 2), Split.TRAIN)
    seen = {problem.messages[-1].text.splitlines()[0] for problem in problems}
    assert all(len(each) == 2 and each[0] in "012" and each[1] in "pb" for each in seen)
    assert len({each[0] for each in seen}) == 3  # chance dealt by seed
    assert not any("Player" in problem.messages[-1].text for problem in problems)


def test_returns_are_scaled_unless_they_are_wanted_raw(games: Games) -> None:
    scaled = games.play("open_spiel", KUHN, ["Bet"]).rollouts[0]
    raw = games.play("open_spiel", KUHN | {"reward": "raw"}, ["bet"]).rollouts[0]
    assert raw.reward == raw.metrics["return"] == scaled.metrics["return"]
    assert scaled.reward == pytest.approx((scaled.metrics["return"] + 2) / 4)


def test_a_game_that_is_stalled_is_lost(games: Games) -> None:
    args = {"game": "tic_tac_toe", "max_steps": 2, "invalid_penalty": 0.5}
    [rollout] = games.play("open_spiel", args, ["I give up", "9" * 5_000], sampling=WORDY).rollouts
    assert told(rollout)[1].startswith("'I give up' is not a legal action. Legal actions: x(0,0)")
    assert (rollout.reward, rollout.metrics["truncated"], rollout.metrics["return"]) == (-1.0, 1.0, -1.0)


def test_one_player_is_paid_as_it_goes(games: Games) -> None:
    args = {"game": "2048", "reward": "raw", "max_steps": 12}
    [rollout] = games.play("open_spiel", args, ["right", "down", "left", "<action>Down</action>"]).rollouts
    assert rollout.reward == rollout.metrics["return"] > 0
    assert "won" not in rollout.metrics


def test_moves_at_the_same_time_are_played_in_turn_as_the_refusal_says(games: Games) -> None:
    with pytest.raises(RegistryError, match="goofspiel is a game of simultaneous moves") as refused:
        games.load("open_spiel", {"game": "goofspiel(num_cards=3)"})
    game = str(refused.value).split('game = "')[1].split('"')[0]
    [rollout] = games.play("open_spiel", {"game": game}, ["[P0]Bid: 1", "[P0]Bid: 2", "[P0]Bid: 3"]).rollouts
    assert rollout.metrics["terminated"] == 1.0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"game": "nonsense"}, "game 'nonsense': Unknown game 'nonsense'"),
        ({"game": "chess(pieces=3)"}, "Unknown parameter 'pieces'"),
        ({"game": "mfg_crowd_modelling"}, "mfg_crowd_modelling is a mean-field game"),
        (KUHN | {"opponent": "mcts"}, "kuhn_poker hides something from its players"),
        ({"game": "2048", "opponent": "mcts"}, "2048 pays as it goes"),
        ({"game": "2048", "observe": "information_state"}, "2048 gives no information state as text"),
        ({"game": "chess", "opponent": "stockfish"}, "Invalid enum value 'stockfish'"),
    ],
)
def test_what_cannot_be_mapped_is_refused_by_name(games: Games, args: dict[str, object], message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        games.load("open_spiel", args)
