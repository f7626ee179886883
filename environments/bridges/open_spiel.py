"""open_spiel: games of one or more players who move in turn, with perfect or imperfect information.

    environments = [{name = "open_spiel", python = "open_spiel", args = {game = "connect_four", opponent = "mcts"}}]

A problem is a seed: of the chance events, of what the opponents do, and by its remainder of the seat that the policy
has. The reward of an episode is what the game returns to that seat.
"""

import random
from importlib import import_module
from typing import Annotated, Any, Literal

from msgspec import Meta

from environments.bridges.stepped import InvalidAction, Outcome, OwnThread, Stepped, SteppedArgs

_MOST_SHOWN = 200
"""Legal actions that the policy is told of."""
_UCT_C = 2.0
_MCTS_MEMORY_MB = 64


class OpenSpielArgs(SteppedArgs, frozen=True, kw_only=True):
    """Arguments of open_spiel."""

    game: Annotated[str, Meta(min_length=1, description="Name of the game, with its parameters in brackets if any.")]
    opponent: Annotated[
        Literal["random", "mcts"], Meta(description="What has the other seats: any legal action, or a tree search.")
    ] = "random"
    mcts_simulations: Annotated[int, Meta(ge=1, description="Of the search, per action.")] = 100
    observe: Annotated[
        Literal["auto", "observation", "information_state"],
        Meta(description="What the policy is shown; auto: the state if all see it, else all that its seat knows."),
    ] = "auto"
    reward: Annotated[
        Literal["scaled", "raw"], Meta(description="The return as it is, or from 0 for the least to 1 for the most.")
    ] = "scaled"


class OpenSpielEpisode:
    """One game from its first state to its last."""

    def __init__(self, game: Any, seed: int, args: OpenSpielArgs) -> None:
        self.seat = seed % game.num_players()
        self._game = game
        self._type = game.get_type()
        self._seed = seed
        self._args = args
        self._thread = OwnThread()
        self._state = game.new_initial_state()
        self._opponents: list[Any] = []

    async def start(self) -> str:
        """As `SteppedEpisode.start`."""
        return await self._thread.run(self._start)

    async def act(self, action: str) -> str:
        """As `SteppedEpisode.act`."""
        return await self._thread.run(self._act, action)

    def outcome(self) -> Outcome:
        """What the seat has got. A game that pays at its end is lost if it has none: stalling must not pay."""
        is_over, library = self._state.is_terminal(), import_module("pyspiel")
        least, most = self._game.min_utility(), self._game.max_utility()
        pays_at_end = self._type.reward_model == library.GameType.RewardModel.TERMINAL
        returns = self._state.returns()
        got = least if pays_at_end and not is_over else returns[self.seat]
        others = [each for seat, each in enumerate(returns) if seat != self.seat]
        metrics = {"return": got, "seat": float(self.seat)}
        if others:
            metrics["won"] = float(is_over and returns[self.seat] > max(others))
        reward = got if self._args.reward == "raw" else (got - least) / (most - least)
        return Outcome(reward, metrics, is_over)

    async def close(self) -> None:
        """As `SteppedEpisode.close`."""
        self._thread.end(lambda: None)

    def _start(self) -> str:
        # Chance has numbers of its own: what it deals does not depend on how often an opponent rolled.
        self._chance = random.Random(f"{self._seed}/chance")
        self._choices = random.Random(f"{self._seed}/opponents")
        if self._args.opponent == "mcts":
            self._search = _search(self._game, self._args.mcts_simulations, self._seed)
        played = self._move_on()
        return self._shown(played)

    def _act(self, action: str) -> str:
        self._state.apply_action(self._read(action))
        return self._shown(self._move_on())

    def _read(self, text: str) -> int:
        """The legal action that a text names: as the game writes it, whatever the case, or by its number."""
        legal = {self._state.action_to_string(self.seat, each): each for each in self._state.legal_actions()}
        folded = {name.casefold(): each for name, each in legal.items()}
        found: int | None = legal.get(text, folded.get(text.casefold()))
        if found is None and text.isdecimal() and int(text) in legal.values():
            found = int(text)
        if found is None:
            raise InvalidAction(f"{text[:200]!r} is not a legal action. {self._legal()}")
        return found

    def _move_on(self) -> list[str]:
        """Let chance and the opponents move until it is the policy's turn; return what all could see of it."""
        played = []
        while not self._state.is_terminal() and self._state.current_player() != self.seat:
            if self._state.is_chance_node():
                self._state.apply_action(_drawn(self._state.chance_outcomes(), self._chance.random()))
                continue
            player, legal = self._state.current_player(), self._state.legal_actions()
            if self._args.opponent == "mcts":
                action = self._search.step(self._state)
            else:
                action = legal[int(self._choices.random() * len(legal))]
            if _is_perfect(self._type):
                played.append(f"Player {player}: {self._state.action_to_string(player, action)}")
            self._state.apply_action(action)
        return played

    def _shown(self, played: list[str]) -> str:
        if self._state.is_terminal():
            return "\n\n".join([*played, "The game is over."])
        if _observes(self._type, self._args):
            seen = self._state.observation_string(self.seat)
        else:
            seen = self._state.information_state_string(self.seat)
        return "\n\n".join([*played, seen.strip("\n"), self._legal()])

    def _legal(self) -> str:
        names = [self._state.action_to_string(self.seat, each) for each in self._state.legal_actions()]
        more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
        return f"Legal actions: {', '.join(names[:_MOST_SHOWN])}{more}"


class OpenSpiel(Stepped[OpenSpielArgs]):
    """Play a game of OpenSpiel from one of its seats."""

    name = "open_spiel"
    args_type = OpenSpielArgs
    library = "open_spiel"

    def __init__(self, args: OpenSpielArgs) -> None:
        """Raises ValueError, which says why a game cannot be played here."""
        super().__init__(args)
        pyspiel = import_module("pyspiel")
        try:
            self._game = pyspiel.load_game(args.game)
        except pyspiel.SpielError as error:
            # It goes on with the names of all games.
            why = str(error).splitlines()[0].removesuffix(" Available games are:")
            raise ValueError(f"game {args.game!r}: {why}") from error
        kind = self._game.get_type()
        _check_kind(pyspiel, kind, args)
        least, most = self._game.min_utility(), self._game.max_utility()
        if args.reward == "scaled" and not (abs(least) < float("inf") and abs(most) < float("inf") and least < most):
            raise ValueError(f'{kind.short_name} returns {least} to {most}, which has no scale: set reward = "raw"')

    def _title(self) -> str:
        return self.args.game

    def _instructions(self) -> str:
        return f"You play {self._game.get_type().long_name}. Reply with one of the legal actions: <action>...</action>."

    def _open(self, seed: int) -> OpenSpielEpisode:
        return OpenSpielEpisode(self._game, seed, self.args)


def _check_kind(pyspiel: Any, kind: Any, args: OpenSpielArgs) -> None:
    name, dynamics = kind.short_name, pyspiel.GameType.Dynamics
    if kind.dynamics == dynamics.SIMULTANEOUS:
        raise ValueError(
            f"{name} is a game of simultaneous moves, and a policy replies in turn: "
            f'use game = "turn_based_simultaneous_game(game={args.game if "(" in args.game else args.game + "()"})"'
        )
    if kind.dynamics == dynamics.MEAN_FIELD:
        raise ValueError(f"{name} is a mean-field game: it has a crowd, and no other players to move")
    if not (kind.provides_observation_string if _observes(kind, args) else kind.provides_information_state_string):
        raise ValueError(f"{name} gives no {'observation' if _observes(kind, args) else 'information state'} as text")
    if args.opponent == "mcts" and not _is_perfect(kind):
        raise ValueError(
            f'{name} hides something from its players, and the search would see it: set opponent = "random"'
        )
    if args.opponent == "mcts" and kind.reward_model != pyspiel.GameType.RewardModel.TERMINAL:
        raise ValueError(f'{name} pays as it goes, and the search wants games that pay at their end: "random" plays it')


def _observes(kind: Any, args: OpenSpielArgs) -> bool:
    """Whether observations are shown, and not information states, which of perfect information are but its history."""
    if args.observe != "auto":
        return args.observe == "observation"
    return kind.provides_observation_string and (_is_perfect(kind) or not kind.provides_information_state_string)


def _is_perfect(kind: Any) -> bool:
    return bool(kind.information == import_module("pyspiel").GameType.Information.PERFECT_INFORMATION)


def _search(game: Any, simulations: int, seed: int) -> Any:
    pyspiel = import_module("pyspiel")
    evaluator = pyspiel.RandomRolloutEvaluator(1, seed)
    return pyspiel.MCTSBot(game, evaluator, _UCT_C, simulations, _MCTS_MEMORY_MB, True, seed, False)


def _drawn(outcomes: list[tuple[int, float]], drawn: float) -> int:
    """The outcome at `drawn` of the distribution, in [0, 1)."""
    for outcome, probability in outcomes:
        drawn -= probability
        if drawn < 0:
            return outcome
    return outcomes[-1][0]
