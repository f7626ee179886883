"""blackjack: play some hands of cards against a dealer, by hit and stand. Several turns; needs no data.

What was played is worked out anew from the replies, so an episode that a budget cut is scored like any other: hands
that were not played to their end are lost.
"""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from environments.library.draws import Draws, of_split
from environments.library.made_up import MadeUp, MadeUpArgs
from environments.library.splits import digest
from environments.rewards.replies import in_tag, without_thoughts
from environments.types import Message, PlayedRollout, Problem, Split

_RANKS = "A23456789TJQK"
_MOST = 21
_DEALER_STANDS = 17
_HIT, _STAND = "hit", "stand"
_WON, _DRAWN, _LOST = 1.0, 0.5, 0.0
_RULES = f"""\
You play blackjack against a dealer{{hands}}. Cards count their number, T J Q K ten, an A eleven or, where that would \
be too much, one. Come closer to {_MOST} than the dealer, and not above it. The dealer draws below {_DEALER_STANDS}.
Reply with <action>{_HIT}</action> for a further card, or <action>{_STAND}</action> when you have enough. A reply with \
neither loses the hand."""


class BlackjackArgs(MadeUpArgs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of blackjack."""

    hands: Annotated[int, Meta(ge=1, le=20, description="Per episode; sampling.max_turns: about 3 for each.")] = 5


class Blackjack(MadeUp[BlackjackArgs]):
    """Play hands of blackjack against a dealer.

    Task: for each of `hands`, hit or stand in <action> tags, told one's own cards and the dealer's first. The dealer
    stands on every 17; there is no doubling, splitting or betting, and a 21 of two cards is a 21 like any other. Hands
    that begin with 21 are dealt again: there is nothing to decide.
    Data: packs of 52 cards shuffled by the seed, a new one for each hand; an eighth of all is held out. Licence: ours.
    Arguments: `hands`, `train_count`, `eval_count`, `seed`.
    Reward: mean over the hands of 1 (won), 1/2 (drawn) or 0 (lost, not finished, or a reply without an action).
    Checked: basic strategy earns .45, hit or stand at random .31, standing always .37. Means of 1,000 problems, worked
    out by the tests for fewer.
    """

    name = "blackjack"
    args_type = BlackjackArgs

    def problem(self, split: Split, index: int) -> Problem:
        packs = of_split(split, f"{self.args.seed}/{split}/{index}", self._packs, " ".join)
        hands = f", {len(packs)} hands in a row" if len(packs) > 1 else ""
        told = f"{_RULES.format(hands=hands)}\n\n{CardTable(packs).shown}"
        return Problem(key=digest(" ".join(packs))[:16], messages=[Message("user", told)], data={"packs": packs})

    async def start(self, problem: Problem) -> "CardTable":
        return CardTable(problem.data["packs"])

    async def step(self, state: "CardTable", reply: Message) -> list[Message] | None:
        told = state.play(_action(reply))
        return None if state.is_over else [Message("user", told)]

    def reward(self, problem: Problem, rollout: PlayedRollout) -> float:
        """See the class. Metrics: shares `won`, `drawn` of the hands, and how many `invalid_actions`."""
        table = CardTable(problem.data["packs"])
        invalid = 0
        for message in rollout.messages:
            if message.role == "assistant" and not table.is_over:
                action = _action(message)
                invalid += action is None
                table.play(action)
        hands = len(problem.data["packs"])
        rollout.metrics["won"] = table.outcomes.count(_WON) / hands
        rollout.metrics["drawn"] = table.outcomes.count(_DRAWN) / hands
        rollout.metrics["invalid_actions"] = float(invalid)
        return sum(table.outcomes) / hands

    def solution(self, problem: Problem) -> list[Message]:
        """Play by basic strategy, which knows no more than the player does: it may lose."""
        table = CardTable(problem.data["packs"])
        messages = list(problem.messages)
        while True:
            action = basic_strategy(table.player, table.dealer[0])
            messages.append(Message("assistant", f"<action>{action}</action>"))
            told = table.play(action)
            if table.is_over:
                return messages
            messages.append(Message("user", told))

    def _packs(self, draws: Draws) -> list[str]:
        return [_pack(draws) for _ in range(self.args.hands)]


class CardTable:
    """Hands played one after another, each from the top of a pack: two cards to the player, then two to the dealer."""

    def __init__(self, packs: Sequence[str]) -> None:
        self.outcomes: list[float] = []
        """Of the hands that are over."""
        self._packs = packs
        self._deal()

    @property
    def is_over(self) -> bool:
        """Whether no hand is left."""
        return len(self.outcomes) == len(self._packs)

    @property
    def shown(self) -> str:
        """What the player sees of the hand that is played."""
        number = f"Hand {len(self.outcomes) + 1} of {len(self._packs)}. " if len(self._packs) > 1 else ""
        return f"{number}Your cards: {' '.join(self.player)} ({total(self.player)}). The dealer shows {self.dealer[0]}."

    def play(self, action: str | None) -> str:
        """Hit, stand, or lose the hand by neither; return what the player is told. Not once it is over."""
        if action == _HIT:
            self.player.append(next(self._cards))
            if total(self.player) < _MOST:
                return self.shown
        if action in (_HIT, _STAND) and total(self.player) <= _MOST:
            while total(self.dealer) < _DEALER_STANDS:
                self.dealer.append(next(self._cards))
        return self._settle(is_forfeit=action not in (_HIT, _STAND))

    def _settle(self, *, is_forfeit: bool) -> str:
        own, other = total(self.player), total(self.dealer)
        if is_forfeit or own > _MOST:
            outcome = _LOST
        elif other > _MOST or own > other:
            outcome = _WON
        else:
            outcome = _DRAWN if own == other else _LOST
        word = {_WON: "You win", _DRAWN: "A draw", _LOST: "You lose"}[outcome]
        why = f"That is neither {_HIT} nor {_STAND}. " if is_forfeit else ""
        hands = f"Your cards: {' '.join(self.player)} ({own}). Dealer's cards: {' '.join(self.dealer)} ({other})."
        self.outcomes.append(outcome)
        told = f"{why}{hands} {word}."
        if self.is_over:
            return told
        self._deal()
        return f"{told}\n{self.shown}"

    def _deal(self) -> None:
        self._cards = iter(self._packs[len(self.outcomes)])
        self.player = [next(self._cards), next(self._cards)]
        self.dealer = [next(self._cards), next(self._cards)]


def total(cards: Sequence[str]) -> int:
    """What cards count: an ace eleven if that leaves them at 21 or below."""
    low = sum(min(_RANKS.index(card) + 1, 10) for card in cards)
    return low + 10 if "A" in cards and low + 10 <= _MOST else low


def basic_strategy(player: Sequence[str], dealer: str) -> str:
    """The best of hit and stand by the player's cards and the dealer's first, against a dealer who stands on 17.

    The known table: stand on hard 17, on hard 13 against 2 to 6, on hard 12 against 4 to 6; on soft 19, and on soft 18
    against all but 9, ten and ace.
    """
    own, against = total(player), total([dealer])
    is_soft = own != sum(min(_RANKS.index(card) + 1, 10) for card in player)
    if is_soft:
        enough = 18 if against <= 8 else 19
    elif against <= 6:
        enough = 12 if against >= 4 else 13
    else:
        enough = 17
    return _STAND if own >= enough else _HIT


def _action(reply: Message) -> str | None:
    action = (in_tag(without_thoughts(reply.text), "action") or "").strip().lower()
    return action if action in (_HIT, _STAND) else None


def _pack(draws: Draws) -> str:
    """The ranks of 52 cards, in an order in which the player does not begin with 21."""
    while True:
        cards = draws.sample(_RANKS * 4, 52)
        if total(cards[:2]) < _MOST:
            return "".join(cards)
