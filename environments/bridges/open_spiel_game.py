"""What is played of OpenSpiel, whoever has its seats: a game by its name, what a seat sees, what a return is worth."""

import random
from importlib import import_module
from typing import Annotated, Any, Literal

from msgspec import Meta

from environments.bridges.stepped import InvalidAction, SteppedArgs

_MOST_DIGITS = 20
"""Of an action's number, which has 64 bits: of thousands Python makes no number, and raises."""
_MOST_SHOWN = 200
"""Legal actions that a policy is told of."""


class SpielGameArgs(SteppedArgs, frozen=True, kw_only=True):
    """Arguments of every environment that plays such games."""

    game: Annotated[str, Meta(min_length=1, description="Name of the game, with its parameters in brackets if any.")]
    observe: Annotated[
        Literal["auto", "observation", "information_state"],
        Meta(description="What the policy is shown; auto: the state if all see it, else all that its seat knows."),
    ] = "auto"
    reward: Annotated[
        Literal["scaled", "raw"], Meta(description="The return as it is, or from 0 for the least to 1 for the most.")
    ] = "scaled"


class SpielGame:
    """A game that can be played here."""

    def __init__(self, args: SpielGameArgs) -> None:
        """Raises ValueError, which says why it cannot."""
        pyspiel = import_module("pyspiel")
        try:
            self.game = pyspiel.load_game(args.game)
        except pyspiel.SpielError as error:
            # It goes on with the names of all games.
            why = str(error).splitlines()[0].removesuffix(" Available games are:")
            raise ValueError(f"game {args.game!r}: {why}") from error
        self.args = args
        self.kind = self.game.get_type()
        self.is_perfect = self.kind.information == pyspiel.GameType.Information.PERFECT_INFORMATION
        self.pays_at_end = self.kind.reward_model == pyspiel.GameType.RewardModel.TERMINAL
        self.players: int = self.game.num_players()
        self.least, self.most = float(self.game.min_utility()), float(self.game.max_utility())
        is_shared = self.kind.utility in (pyspiel.GameType.Utility.ZERO_SUM, pyspiel.GameType.Utility.CONSTANT_SUM)
        self.sum: float | None = float(self.game.utility_sum()) if is_shared else None
        """Of all returns, where it is always the same."""
        self._check(pyspiel)

    @property
    def instructions(self) -> str:
        """What the policy is told of actions."""
        return f"You play {self.kind.long_name}. Reply with one of the legal actions: <action>...</action>."

    @property
    def observes(self) -> bool:
        """Whether observations are shown, and not information states, which of perfect information are its history."""
        if self.args.observe != "auto":
            return self.args.observe == "observation"
        kind = self.kind
        return kind.provides_observation_string and (self.is_perfect or not kind.provides_information_state_string)

    def reward(self, got: float) -> float:
        """What a return is worth."""
        return got if self.args.reward == "raw" else (got - self.least) / (self.most - self.least)

    def _check(self, pyspiel: Any) -> None:
        kind, args, dynamics = self.kind, self.args, pyspiel.GameType.Dynamics
        name = kind.short_name
        if kind.dynamics == dynamics.SIMULTANEOUS:
            raise ValueError(
                f"{name} is a game of simultaneous moves, and a policy replies in turn: "
                f'use game = "turn_based_simultaneous_game(game={args.game if "(" in args.game else args.game + "()"})"'
            )
        if kind.dynamics == dynamics.MEAN_FIELD:
            raise ValueError(f"{name} is a mean-field game: it has a crowd, and no other players to move")
        if not (kind.provides_observation_string if self.observes else kind.provides_information_state_string):
            raise ValueError(f"{name} gives no {'observation' if self.observes else 'information state'} as text")
        least, most = self.least, self.most
        if args.reward == "scaled" and not (abs(least) < float("inf") and abs(most) < float("inf") and least < most):
            raise ValueError(f'{name} returns {least} to {most}, which has no scale: set reward = "raw"')


class SpielTable:
    """One game from its first state to its last. Not to be used by several threads at a time."""

    def __init__(self, spiel: SpielGame, seed: int) -> None:
        self.spiel = spiel
        self.state = spiel.game.new_initial_state()
        # Chance has numbers of its own: what it deals does not depend on how often an opponent rolled.
        self._chance = random.Random(f"{seed}/chance")

    @property
    def is_over(self) -> bool:
        """Whether nobody moves any more."""
        return bool(self.state.is_terminal())

    def deal(self) -> None:
        """Let chance move until a player is to move, or the game is over."""
        while self.state.is_chance_node():
            self.state.apply_action(_drawn(self.state.chance_outcomes(), self._chance.random()))

    def take(self, seat: int, action: int) -> str:
        """Let a seat move; return what all could see of it: nothing where information is hidden."""
        told = f"Player {seat}: {self.state.action_to_string(seat, action)}" if self.spiel.is_perfect else ""
        self.state.apply_action(action)
        return told

    def read(self, seat: int, text: str) -> int:
        """The legal action that a text names: as the game writes it, whatever the case, or by its number.

        Raises InvalidAction.
        """
        legal = {self.state.action_to_string(seat, each): each for each in self.state.legal_actions()}
        folded = {name.casefold(): each for name, each in legal.items()}
        found: int | None = legal.get(text, folded.get(text.casefold()))
        if found is None and len(text) <= _MOST_DIGITS and text.isdecimal() and int(text) in legal.values():
            found = int(text)
        if found is None:
            raise InvalidAction(f"{text[:200]!r} is not a legal action. {self._legal(seat)}")
        return found

    def shown(self, seat: int, played: list[str]) -> str:
        """What a seat is told: the moves since it was told last, and what it sees now."""
        told = [each for each in played if each]
        if self.is_over:
            return "\n\n".join([*told, "The game is over."])
        state = self.state
        seen = state.observation_string(seat) if self.spiel.observes else state.information_state_string(seat)
        return "\n\n".join([*told, seen.strip("\n"), self._legal(seat)])

    def _legal(self, seat: int) -> str:
        names = [self.state.action_to_string(seat, each) for each in self.state.legal_actions()]
        more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
        return f"Legal actions: {', '.join(names[:_MOST_SHOWN])}{more}"


def _drawn(outcomes: list[tuple[int, float]], drawn: float) -> int:
    """The outcome at `drawn` of the distribution, in [0, 1)."""
    for outcome, probability in outcomes:
        drawn -= probability
        if drawn < 0:
            return outcome
    return outcomes[-1][0]
