"""kuhn_poker: the smallest poker, between two seats. Self-play where both are the run's; needs no data."""

import random
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from environments.env import Environment, PolicySession
from environments.errors import ContextFull, TurnsOver
from environments.library.kuhn_poker import game
from environments.rewards.replies import in_tag, without_thoughts
from environments.types import FinishedRollout, Message, Problem, Split

_WORDS = {game.PASS: "pass", game.BET: "bet"}
_STRATEGIES = {"equilibrium": game.equilibrium, "uniform": game.uniform, "novice": game.novice}
_LETTERS = {word: letter for letter, word in _WORDS.items()}
_RULES = """\
Kuhn poker: each has one of the cards J, Q, K and 1 chip in the pot. A bet is 1 chip. To pass after a bet gives up the \
pot; else the higher card has it. Reply <action>pass</action> or <action>bet</action>."""


class KuhnPokerArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of kuhn_poker."""

    train_count: Annotated[int, Meta(ge=6, description="Matches to train on; they go round the six deals.")] = 10_002
    solutions: Annotated[
        Literal["equilibrium", "uniform", "novice"],
        Meta(
            description="How solutions play; uniform: by the toss of a coin; novice: by its card alone, whatever the"
            " other did, a better one betting more often. Both leave RL much to learn."
        ),
    ] = "equilibrium"


class KuhnPoker(Environment[KuhnPokerArgs]):
    """Play Kuhn poker against another player, or against oneself.

    Task: two seats, `first` and `second`, have a card of three each and know their own. In turn they pass or bet in
    <action> tags, two or three times in all, told what the other did.
    Data: the six deals, in turn. There is nothing to hold out of so small a game: held-out problems are matches that
    begin at each of its 24 positions, so that all twelve information sets are measured. Licence: ours.
    Arguments: `train_count`, `solutions`.
    Reward: chips won, -2 to 2. A reply without an action, or none within the budget, ends the match and loses 2.
    Checked: an equilibrium against itself earns -1/18 in the first seat and 1/18 in the second, worked out by the
    tests. Metrics `bet/Kpb` and so on give the policy's moves, from which an evaluation has its `exploitability`: 0
    for an equilibrium, .458 for the toss of a coin. It takes chance for weakness, so play each position often: by an
    equilibrium .03 is measured of 16 matches each, and .13 of one.
    """

    name = "kuhn_poker"
    version = "2"
    args_type = KuhnPokerArgs
    seats = ("first", "second")

    def count(self, split: Split) -> int:
        return self.args.train_count if split is Split.TRAIN else len(list(game.positions()))

    def problem(self, split: Split, index: int) -> Problem:
        if split is Split.TRAIN:
            deal = game.DEALS[index % len(game.DEALS)]
            key, data = f"{deal}-{index}", {"deal": deal, "history": "", "match": index}
        else:
            deal, history = list(game.positions())[index]
            key, data = f"{deal}-{history or 'begin'}", {"deal": deal, "history": history}
        return Problem(key=key, messages=[Message("user", _RULES)], data=data)

    async def play_match(self, problem: Problem, sessions: Mapping[str, PolicySession]) -> None:
        deal, history = problem.data["deal"], problem.data["history"]
        moves: dict[str, dict[str, str]] = {seat: {} for seat in self.seats}
        while not game.is_over(history):
            at = game.mover(history)
            seat = self.seats[at]
            try:
                move = _move(await sessions[seat].reply(_conversation(deal, history)))
            except (ContextFull, TurnsOver):
                move = game.ILLEGAL
            moves[seat][deal[at] + history] = move
            history += move
        won = game.chips(deal, history)
        for seat, own in moves.items():
            sessions[seat].note({"chips": won if seat == self.seats[0] else -won, "moves": own})

    def reward(self, problem: Problem, rollout: FinishedRollout) -> float:
        """See the class. Metrics: for each information set at which the seat moved, whether it bet, and whether its
        reply was illegal."""
        for known, move in rollout.notes["moves"].items():
            rollout.metrics[f"bet/{known}"] = float(move == game.BET)
            rollout.metrics[f"illegal/{known}"] = float(move == game.ILLEGAL)
        return float(rollout.notes["chips"])

    @classmethod
    def overall(cls, means: Mapping[str, float]) -> dict[str, float]:
        """The exploitability of a policy that was seen at every information set."""
        strategy: dict[str, dict[str, float]] = {}
        for known in game.INFORMATION_SETS:
            bet, illegal = means.get(f"bet/{known}"), means.get(f"illegal/{known}")
            if bet is None or illegal is None:
                return {}
            strategy[known] = {game.BET: bet, game.ILLEGAL: illegal, game.PASS: 1 - bet - illegal}
        return {"exploitability": game.exploitability(strategy)}

    def match_solution(self, problem: Problem) -> dict[str, list[Message]]:
        """A match of two players of `solutions`, whose mixed moves are drawn by the problem's key."""
        strategy = _STRATEGIES[self.args.solutions]()
        draws = random.Random(problem.key)
        deal, history = problem.data["deal"], problem.data["history"]
        conversations = {seat: list(problem.messages) for seat in self.seats}
        while not game.is_over(history):
            at = game.mover(history)
            move = game.BET if draws.random() < strategy[deal[at] + history][game.BET] else game.PASS
            conversations[self.seats[at]] = [*_conversation(deal, history), _said(move)]
            history += move
        return conversations


def _conversation(deal: str, history: str) -> list[Message]:
    """What the seat that moves was told, and what it said."""
    at = game.mover(history)
    begins = "You begin." if at == 0 else f"The other {_past(history[0])}."
    messages = [Message("user", f"{_RULES}\n\nYou have {deal[at]}. {begins}")]
    for number in range(at, len(history), 2):
        messages += [_said(history[number]), Message("user", f"The other {_past(history[number + 1])}.")]
    return messages


def _said(move: str) -> Message:
    return Message("assistant", f"<action>{_WORDS[move]}</action>")


def _past(move: str) -> str:
    return {game.PASS: "passed", game.BET: "bet"}[move]


def _move(reply: Message) -> str:
    action = (in_tag(without_thoughts(reply.text), "action") or "").strip().lower()
    return _LETTERS.get(action, game.ILLEGAL)
