"""How many groups of one environment a driver plays at a time: fewer while they fail, so that the others go on."""

import time
from fractions import Fraction

_GROWTH = 8
"""A group that went well makes room for an eighth more."""
ALONE_PAUSE_S = 10.0
"""The longest pause of a run's only environment: it may recover, and there is nothing else to do."""
AMONG_OTHERS_PAUSE_S = 300.0
_FIRST_PAUSE_S = 0.25
_PAUSE_GROWTH = 4


class Window:
    """Opens with groups that go well, closes by half with each that fails; at last it pauses, longer each time."""

    def __init__(self, most: int, *, first: int, longest_pause_s: float) -> None:
        """`most` groups at a time, `first` at the beginning."""
        self.playing = Fraction(0)
        """Groups that are being played; one with fewer rollouts than a training group is a part of one."""
        self._most = most
        self._longest_pause_s = longest_pause_s
        self._size = max(1, min(first, most))
        self._failures = 0
        """In a row, since there is room for one only."""
        self._not_before = 0.0

    @property
    def is_failing(self) -> bool:
        """Whether its last groups all failed."""
        return self._failures > 0

    def room(self) -> int:
        """Groups that may be begun now."""
        return 0 if time.monotonic() < self._not_before else max(0, int(self._size - self.playing))

    def succeeded(self) -> None:
        """A group was scored."""
        self._failures = 0
        self._not_before = 0.0
        self._size = min(self._most, self._size + max(1, self._size // _GROWTH))

    def failed(self) -> None:
        """No rollout of a group has a reward, by a fault of the environment's."""
        if self._size > 1:
            self._size //= 2
            return
        self._not_before = time.monotonic() + min(self._longest_pause_s, _FIRST_PAUSE_S * _PAUSE_GROWTH**self._failures)
        self._failures = min(self._failures + 1, 30)
