"""Which pool each turn of an environment belongs to. Pure: no database, no clock, no chance.

Turn t is at the fractional part of t times the golden ratio, on a line that the pools divide by their shares. Of any n
turns in a row every pool then has its share of n, give or take a few, and nobody has to remember who had what.
"""

from collections import Counter
from enum import StrEnum
from math import sqrt

from trainers.run_config import PoolsConfig

_GOLDEN = (sqrt(5) - 1) / 2


class Pool(StrEnum):
    """Where a problem is by its solve rate; in the order in which one stands in for another that is empty."""

    NEW = "new"
    """Handed out and not scored yet, or never handed out."""
    NORMAL = "normal"
    HARD = "hard"
    EASY = "easy"


def pool_of_turn(turn: int, config: PoolsConfig) -> Pool:
    """Whose turn it is."""
    at = turn * _GOLDEN % 1.0
    for pool, share in ((Pool.NEW, config.new_share), (Pool.EASY, config.easy_share), (Pool.HARD, config.hard_share)):
        if at < share:
            return pool
        at -= share
    return Pool.NORMAL


def wanted(turn: int, count: int, config: PoolsConfig) -> Counter[Pool]:
    """How many of the ``count`` turns from ``turn`` on are each pool's."""
    return Counter(pool_of_turn(turn + ahead, config) for ahead in range(count))
