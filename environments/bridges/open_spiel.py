"""open_spiel: games of one or more players who move in turn, with perfect or imperfect information.

    environments = [{name = "open_spiel", python = "open_spiel", args = {game = "connect_four", opponent = "mcts"}}]

A problem is a seed: of the chance events, of what the opponents do, and by its remainder of the seat that the policy
has. The reward of an episode is what the game returns to that seat. `open_spiel_match` has policies in all seats.
"""

import random
from importlib import import_module
from typing import Annotated, Any, Literal

from msgspec import Meta

from environments.bridges.open_spiel_game import SpielGame, SpielGameArgs, SpielTable
from environments.bridges.stepped import Outcome, OwnThread, Stepped

_UCT_C = 2.0
_MCTS_MEMORY_MB = 64


class OpenSpielArgs(SpielGameArgs, frozen=True, kw_only=True):
    """Arguments of open_spiel."""

    opponent: Annotated[
        Literal["random", "mcts"], Meta(description="What has the other seats: any legal action, or a tree search.")
    ] = "random"
    mcts_simulations: Annotated[int, Meta(ge=1, description="Of the search, per action.")] = 100


class OpenSpielEpisode:
    """One game from its first state to its last."""

    def __init__(self, spiel: SpielGame, seed: int, args: OpenSpielArgs) -> None:
        self.seat = seed % spiel.players
        self._spiel = spiel
        self._seed = seed
        self._args = args
        self._thread = OwnThread()
        self._table = SpielTable(spiel, seed)

    async def start(self) -> str:
        """As `SteppedEpisode.start`."""
        return await self._thread.run(self._start)

    async def act(self, action: str) -> str:
        """As `SteppedEpisode.act`."""
        return await self._thread.run(self._act, action)

    def outcome(self) -> Outcome:
        """What the seat has got. A game that pays at its end is lost if it has none: stalling must not pay."""
        is_over, returns = self._table.is_over, self._table.state.returns()
        got = self._spiel.least if self._spiel.pays_at_end and not is_over else returns[self.seat]
        others = [each for seat, each in enumerate(returns) if seat != self.seat]
        metrics = {"return": got, "seat": float(self.seat)}
        if others:
            metrics["won"] = float(is_over and returns[self.seat] > max(others))
        return Outcome(self._spiel.reward(got), metrics, is_over)

    async def close(self) -> None:
        """As `SteppedEpisode.close`."""
        self._thread.end(lambda: None)

    def _start(self) -> str:
        self._choices = random.Random(f"{self._seed}/opponents")
        if self._args.opponent == "mcts":
            self._search = _search(self._spiel.game, self._args.mcts_simulations, self._seed)
        return self._table.shown(self.seat, self._move_on())

    def _act(self, action: str) -> str:
        self._table.take(self.seat, self._table.read(self.seat, action))
        return self._table.shown(self.seat, self._move_on())

    def _move_on(self) -> list[str]:
        """Let chance and the opponents move until it is the policy's turn; return what all could see of it."""
        played = []
        self._table.deal()
        while not self._table.is_over and (player := self._table.state.current_player()) != self.seat:
            legal = self._table.state.legal_actions()
            if self._args.opponent == "mcts":
                action = self._search.step(self._table.state)
            else:
                action = legal[int(self._choices.random() * len(legal))]
            played.append(self._table.take(player, action))
            self._table.deal()
        return played


class OpenSpiel(Stepped[OpenSpielArgs]):
    """Play a game of OpenSpiel from one of its seats."""

    name = "open_spiel"
    args_type = OpenSpielArgs
    library = "open_spiel"

    def __init__(self, args: OpenSpielArgs) -> None:
        """Raises ValueError, which says why a game cannot be played here."""
        super().__init__(args)
        self._spiel = SpielGame(args)
        name = self._spiel.kind.short_name
        if args.opponent == "mcts" and not self._spiel.is_perfect:
            raise ValueError(
                f'{name} hides something from its players, and the search would see it: set opponent = "random"'
            )
        if args.opponent == "mcts" and not self._spiel.pays_at_end:
            raise ValueError(
                f'{name} pays as it goes, and the search wants games that pay at their end: "random" plays it'
            )

    def _title(self) -> str:
        return self.args.game

    def _instructions(self) -> str:
        return self._spiel.instructions

    def _open(self, seed: int) -> OpenSpielEpisode:
        return OpenSpielEpisode(self._spiel, seed, self.args)


def _search(game: Any, simulations: int, seed: int) -> Any:
    pyspiel = import_module("pyspiel")
    evaluator = pyspiel.RandomRolloutEvaluator(1, seed)
    return pyspiel.MCTSBot(game, evaluator, _UCT_C, simulations, _MCTS_MEMORY_MB, True, seed, False)
