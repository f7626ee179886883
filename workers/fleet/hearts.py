"""For how long hearts have been seen not to beat.

The age of a heartbeat says little by itself: after a job was suspended, a disk hung or this machine slept it is old,
and the next beat is about to come. So what counts is seen: the same beat at one look after another.
"""

import time
from typing import NamedTuple

_LOOK_S = 10.0
"""Of the time between two looks what counts at most: in the rest of it nobody looked."""


class _Look(NamedTuple):
    at: float
    beat_at: float
    silent_s: float


class Hearts:
    """Those of replicas, by their tokens. What was seen of them may be lost: then it is seen again."""

    def __init__(self) -> None:
        self._last: dict[str, _Look] = {}

    def silent_s(self, token: str, beat_at: float | None) -> float:
        """Look: for how long has it been seen not to beat? `beat_at`: when it last did, by any clock; None: of one that
        does not beat now nothing follows."""
        last, now = self._last.pop(token, None), time.monotonic()
        if beat_at is None:
            return 0.0
        silent_s = 0.0
        if last is not None and last.beat_at == beat_at:
            silent_s = last.silent_s + min(now - last.at, _LOOK_S)
        self._last[token] = _Look(now, beat_at, silent_s)
        return silent_s
