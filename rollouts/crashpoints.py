"""Named places at which a process can be told to kill itself, so that a test meets exactly that moment.

ROLLYARD_CRASH_POINT=before_insert         the first time it is reached
ROLLYARD_CRASH_POINT=before_insert:3       the third time
ROLLYARD_CRASH_POINT=before_insert%0.01    every time with this probability, repeatable with ROLLYARD_CRASH_SEED

It is read once, when the process starts. Without it a crash point costs one comparison. The end is SIGKILL: nothing is
flushed, closed or rolled back by us, as when the machine kills the process.
"""

import itertools
import os
import random
import re
import signal
from dataclasses import dataclass, field
from enum import StrEnum

VARIABLE = "ROLLYARD_CRASH_POINT"
SEED_VARIABLE = "ROLLYARD_CRASH_SEED"
_SPEC = re.compile(r"(?P<name>[a-z_]+)(:(?P<nth>[1-9]\d*)|%(?P<chance>0?\.\d+|1))?")


class CrashPoint(StrEnum):
    """A moment at which dying is interesting, and what has to hold afterwards."""

    BEFORE_INSERT = "before_insert"
    """A group was received and checked, nothing of it was written: it is not stored, and was not acknowledged."""
    AFTER_INSERT = "after_insert"
    """A group's rows are written or on their way, not committed: it is not stored, and was not acknowledged."""
    AFTER_COMMIT = "after_commit"
    """A group was committed, its submitter was not told: it is stored, and sending it again stores nothing."""
    BEFORE_ASSEMBLY = "before_assembly"
    """The run is locked to form a batch, nothing of the batch was written: its groups are still ready."""
    BEFORE_SEND = "before_send"
    """A batch was committed, nothing of it was sent: the next fetch of the step gets just this batch."""
    MID_BODY = "mid_body"
    """Half of a batch was sent: the trainer has nothing, and the next fetch gets the same bytes."""
    BEFORE_ACK = "before_ack"
    """A trainer's acknowledgement was received, nothing of it was written: sending it again counts the step once."""
    MID_EXPORT = "mid_export"
    """Rows of an export are in its file, or were journalled, or have their name: the next one goes on to the same
    bytes."""


@dataclass
class _Armed:
    """The crash point this process dies at, and when."""

    point: CrashPoint
    nth: int = 1
    chance: float | None = None
    dice: random.Random = field(default_factory=random.Random)
    reached: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def is_due(self) -> bool:
        """Whether this time is the one. Safe from several threads: each call draws a number of its own."""
        return self.dice.random() < self.chance if self.chance is not None else next(self.reached) == self.nth


def parse(spec: str, seed: str = "") -> _Armed | None:
    """What the two variables ask for; None when the first is empty. Raises ValueError for what they cannot mean."""
    if not spec:
        return None
    match = _SPEC.fullmatch(spec)
    if match is None or match["name"] not in set(CrashPoint):
        names = ", ".join(CrashPoint)
        raise ValueError(f"{VARIABLE}={spec}: give NAME, NAME:N or NAME%PROBABILITY, where NAME is one of {names}")
    return _Armed(
        CrashPoint(match["name"]),
        nth=int(match["nth"] or 1),
        chance=float(match["chance"]) if match["chance"] else None,
        dice=random.Random(seed or None),
    )


_ARMED = parse(os.environ.get(VARIABLE, ""), os.environ.get(SEED_VARIABLE, ""))


def crash_point(point: CrashPoint) -> None:
    """Die here if the environment says so."""
    if _ARMED is not None and _ARMED.point is point and _ARMED.is_due():
        os.kill(os.getpid(), signal.SIGKILL)
