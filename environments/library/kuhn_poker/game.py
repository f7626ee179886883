"""Kuhn poker (1950): its rules, its equilibrium, and by how much a strategy can be beaten. Three cards, one bet.

    ""  ── pass ──▶ "p" ── pass ──▶ "pp"   the higher card has the pot of 2
                     └──── bet ───▶ "pb"  ── pass ──▶ "pbp"   the second seat has it
                                           └─ bet ──▶ "pbb"   the higher card has the pot of 4
     └──── bet ───▶ "b"  ── pass ──▶ "bp"   the first seat has it
                     └──── bet ───▶ "bb"   the higher card has the pot of 4

A history is what was done, a letter each; what a player knows when it moves, its information set, is its card and the
history: "K", "Qp", "Jpb". There are twelve. A third move, none of the game, loses 2 whenever it is made, for if it
lost no more than a pass, nothing would teach who has the lowest card to answer at all.
"""

from collections.abc import Iterator, Mapping
from itertools import permutations

CARDS = "JQK"
"""From low to high."""
PASS, BET, ILLEGAL = "p", "b", "x"
MOVES = PASS + BET
DEALS = ["".join(pair) for pair in permutations(CARDS, 2)]
"""The card of the first seat, then that of the second."""
_OPEN = ["", PASS, BET, PASS + BET]
"""Histories at which somebody moves."""
INFORMATION_SETS = [card + history for card in CARDS for history in _OPEN]
BLUFF = 1 / 3
"""How often the first seat bets with the lowest card; every share from 0 to this is an equilibrium."""
VALUE = -1 / 18
"""Chips that the first seat wins of a match between players of an equilibrium."""

Strategy = Mapping[str, Mapping[str, float]]
"""Information set -> move -> how often it is made."""


def mover(history: str) -> int:
    """Which seat moves next, 0 or 1."""
    return len(history) % 2


def is_over(history: str) -> bool:
    """Whether nobody moves any more."""
    return history not in _OPEN


def positions() -> Iterator[tuple[str, str]]:
    """Every deal with every history at which somebody moves."""
    return ((deal, history) for history in _OPEN for deal in DEALS)


def chips(deal: str, history: str) -> int:
    """What the first seat wins of the second when it is over, below 0 what it loses."""
    if history.endswith((BET + PASS, ILLEGAL)):
        lost = 2 if history.endswith(ILLEGAL) else 1
        return -lost if mover(history[:-1]) == 0 else lost
    at_stake = 2 if history.endswith(BET + BET) else 1
    return at_stake if CARDS.index(deal[0]) > CARDS.index(deal[1]) else -at_stake


def equilibrium(bluff: float = BLUFF) -> dict[str, dict[str, float]]:
    """A Nash equilibrium: who plays it loses nothing by being known to. `bluff` lies in 0..1/3."""
    bets = {
        **{"J": bluff, "Q": 0.0, "K": 3 * bluff},
        **{"Jpb": 0.0, "Qpb": bluff + 1 / 3, "Kpb": 1.0},
        **{"Jp": 1 / 3, "Qp": 0.0, "Kp": 1.0},
        **{"Jb": 0.0, "Qb": 1 / 3, "Kb": 1.0},
    }
    return {known: {PASS: 1 - share, BET: share} for known, share in bets.items()}


def uniform() -> dict[str, dict[str, float]]:
    """Either move, by the toss of a coin."""
    return {known: {PASS: 0.5, BET: 0.5} for known in INFORMATION_SETS}


def novice() -> dict[str, dict[str, float]]:
    """By its card alone, whatever the other did: it bets with the lowest one time in three, with the next every second
    time, with the highest two times in three."""
    bets = dict(zip(CARDS, (1 / 3, 1 / 2, 2 / 3), strict=True))
    return {known: {PASS: 1 - bets[known[0]], BET: bets[known[0]]} for known in INFORMATION_SETS}


def exploitability(strategy: Strategy) -> float:
    """Chips a match that the best answers to a strategy win of it, the mean over both seats; 0 for an equilibrium.

    Half of what is called NashConv. Exact. Raises KeyError for an information set that the strategy does not know.
    """
    won = 0.0
    for seat in (0, 1):
        for card in CARDS:
            others = {other: 1 / 6 for other in CARDS if other != card}
            won += _best(strategy, seat, card, others, "")
    return won / 2


def _best(strategy: Strategy, seat: int, card: str, others: Mapping[str, float], history: str) -> float:
    """What the best answer of a seat with a card still wins; `others`: how likely the other has each card, and did
    what it did."""
    if is_over(history):
        sign = 1 if seat == 0 else -1
        deals = {other: card + other if seat == 0 else other + card for other in others}
        return sum(share * sign * chips(deals[other], history) for other, share in others.items())
    if mover(history) == seat:
        return max(_best(strategy, seat, card, others, history + move) for move in MOVES)
    won = 0.0
    for move in MOVES + ILLEGAL:
        reached = {other: share * strategy[other + history].get(move, 0.0) for other, share in others.items()}
        won += _best(strategy, seat, card, reached, history + move)
    return won
