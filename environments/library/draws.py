"""Random choices that are the same in every Python version: only `random()` of `random.Random` is promised to be."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from environments.library.splits import is_held_out
from environments.types import Split

T = TypeVar("T")

Choices = Mapping[str, tuple[int, int] | Sequence[str]]
"""Of parameters: the smallest and the largest whole number, or the words to pick from."""

_MAX_DRAWS = 10_000


class Draws:
    """Choices by a seed."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed).random

    def between(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return low + int(self._random() * (high - low + 1))

    def pick(self, items: Sequence[T]) -> T:
        """One of them."""
        return items[int(self._random() * len(items))]

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """So many different ones, in any order; all of them where there are fewer."""
        left, drawn = list(items), []
        for _ in range(min(count, len(left))):
            at = int(self._random() * len(left))
            left[at], left[-1] = left[-1], left[at]
            drawn.append(left.pop())
        return drawn

    def chosen(self, choices: Choices) -> dict[str, str]:
        """A value for each parameter, as text."""
        return {
            name: str(self.between(*among)) if isinstance(among, tuple) else self.pick(among)
            for name, among in choices.items()
        }


def of_split(split: Split, seed: str, draw: Callable[[Draws], T], text_of: Callable[[T], str]) -> T:
    """The first draw that belongs to a split, which depends on its text alone. Raises ValueError where none does."""
    draws = Draws(seed)
    for _ in range(_MAX_DRAWS):
        drawn = draw(draws)
        if is_held_out(text_of(drawn)) == (split is Split.EVAL):
            return drawn
    raise ValueError(f"none of {_MAX_DRAWS} problems belongs to the {split} split: ask for more levels")
