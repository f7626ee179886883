"""For how long hearts have been seen not to beat.

The age of a heartbeat says little by itself: after a job was suspended, a disk hung or this machine slept it is old,
and the next beat is about to come. So what counts is seen: the same beat at one look after another.
"""

import time
from typing import NamedTuple

_LOOK_S = 10.0
"""Of the time between two looks what counts at most: in the rest of it nobody looked."""
_FORGET_S = 60.0
"""For which nobody can tell whether a heart is to beat, after which what was seen before counts no more: its job was
suspended, say. SLURM that does not answer for a moment is no reason to begin anew."""


class _Look(NamedTuple):
    at: float
    told_at: float
    beat_at: float
    silent_s: float


class Hearts:
    """Those of replicas, by their tokens. What was seen of them may be lost: then it is seen again."""

    def __init__(self) -> None:
        self._last: dict[str, _Look] = {}

    def silent_s(self, token: str, beat_at: float | None) -> float:
        """Look: for how long has it been seen not to beat? `beat_at`: when it last did, by any clock; None: it need not
        beat now, or nobody can tell."""
        last, now = self._last.pop(token, None), time.monotonic()
        if beat_at is None:
            if last is not None and now - last.told_at < _FORGET_S:
                self._last[token] = last._replace(at=now)
            return 0.0
        silent_s = 0.0
        if last is not None and last.beat_at == beat_at:
            silent_s = last.silent_s + min(now - last.at, _LOOK_S)
        self._last[token] = _Look(now, now, beat_at, silent_s)
        return silent_s

    def forget(self, token: str) -> None:
        """Of a replica that has ended."""
        self._last.pop(token, None)
