"""open_spiel_match: games of OpenSpiel between policies, one in each seat. Self-play where all are the run's.

    [[environments]]
    name = "open_spiel_match"
    python = "open_spiel"
    args = {game = "chess"}
    seats = {player_0 = "run", player_1 = "run"}

A problem is a seed of the chance events. A seat's reward is what the game returns to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version

from environments.bridges.open_spiel_game import SpielGame, SpielGameArgs, SpielTable
from environments.bridges.stepped import EVAL_SEEDS, InvalidAction, action_in, short
from environments.env import Environment, PolicySession
from environments.errors import ContextFull, TurnsOver
from environments.types import FinishedRollout, Message, Problem, Split


class OpenSpielMatchArgs(SpielGameArgs, frozen=True, kw_only=True):
    """Arguments of open_spiel_match; `max_steps` is how often each seat replies."""


class OpenSpielMatch(Environment[OpenSpielMatchArgs]):
    """Play a game of OpenSpiel against other policies, or against oneself."""

    name = "open_spiel_match"
    args_type = OpenSpielMatchArgs

    def __init__(self, args: OpenSpielMatchArgs) -> None:
        """Raises ValueError, which says why a game cannot be played here."""
        super().__init__(args)
        self.version = f"{type(self).version}+open_spiel-{version('open_spiel')}"  # type: ignore[misc]  # scores may change with it
        self._spiel = SpielGame(args)
        self.seats = tuple(f"player_{seat}" for seat in range(self._spiel.players))

    def count(self, split: Split) -> int:
        return self.args.train_count if split is Split.TRAIN else self.args.eval_count

    def problem(self, split: Split, index: int) -> Problem:
        seed = self.args.first_seed + index + (EVAL_SEEDS if split is Split.EVAL else 0)
        return Problem(
            key=f"{short(self.args.game)}:{seed}",
            messages=[Message("system", self._instructions())],
            data={"seed": seed},
        )

    async def play_match(self, problem: Problem, sessions: Mapping[str, PolicySession]) -> None:
        """Ask whoever is to move, until the game is over, one has replied `max_steps` times, or one may not reply."""
        table = SpielTable(self._spiel, problem.data["seed"])
        seats = [_Seat(list(problem.messages)) for _ in self.seats]
        gave_up: int | None = None
        table.deal()
        while not table.is_over:
            mover: int = table.state.current_player()
            if seats[mover].replies == self.args.max_steps:
                break
            try:
                await _move(table, seats, mover, sessions[self.seats[mover]])
            except (ContextFull, TurnsOver):
                gave_up = mover
                break
        returns = self._returns(table, gave_up)
        for number, seat in enumerate(seats):
            others = [got for other, got in enumerate(returns) if other != number]
            metrics = {
                "return": returns[number],
                "won": float(returns[number] > max(others, default=returns[number])),
                "steps": float(seat.replies),
                "invalid_actions": float(seat.invalid),
                "truncated": float(not table.is_over),
            }
            sessions[self.seats[number]].note({"metrics": metrics})

    def reward(self, problem: Problem, rollout: FinishedRollout) -> float:
        """What the game returned to the seat, less the penalty for its invalid actions."""
        rollout.metrics.update(rollout.notes["metrics"])
        penalty = self.args.invalid_penalty * rollout.metrics["invalid_actions"]
        return self._spiel.reward(rollout.metrics["return"]) - penalty

    def _returns(self, table: SpielTable, gave_up: int | None) -> list[float]:
        """What each seat gets. Of a game that pays at its end and has none, nobody gets more than the least, unless
        one gave up: then the others share what it lost, where the game says how much there is in all."""
        spiel = self._spiel
        if table.is_over or not spiel.pays_at_end:
            return [float(got) for got in table.state.returns()]
        if gave_up is None or spiel.sum is None:
            return [spiel.least] * spiel.players
        shared = (spiel.sum - spiel.least) / max(1, spiel.players - 1)
        return [spiel.least if seat == gave_up else shared for seat in range(spiel.players)]

    def _instructions(self) -> str:
        return "\n\n".join(part for part in (self.args.system_prompt, self._spiel.instructions) if part)


@dataclass(slots=True)
class _Seat:
    messages: list[Message]
    unseen: list[str] = field(default_factory=list)
    """Moves of others since it was told last."""
    refusal: str = ""
    """Why its last reply was no move."""
    replies: int = 0
    invalid: int = 0


async def _move(table: SpielTable, seats: list[_Seat], mover: int, session: PolicySession) -> None:
    """Ask a seat for one reply, and make the move that it names if any. Raises ContextFull, TurnsOver."""
    seat = seats[mover]
    seat.messages.append(Message("user", seat.refusal or table.shown(mover, seat.unseen)))
    seat.unseen.clear()
    reply = await session.reply(seat.messages)
    seat.replies += 1
    seat.messages.append(reply)
    try:
        action = table.read(mover, action_in(reply.text))
    except InvalidAction as fault:
        seat.refusal = str(fault)
        seat.invalid += 1
        return
    seat.refusal = ""
    told = table.take(mover, action)
    for other in seats:
        if other is not seat:
            other.unseen.append(told)
    table.deal()
