"""Wait on a condition with a deadline: what tests of real processes do instead of sleeping."""

import time
from collections.abc import Callable
from typing import TypeVar

from tests.patience import PATIENCE

T = TypeVar("T")
IN_A_SANDBOX = 4
"""Processes of a replica that starts none: shepherd, bwrap, the sandbox's first process, the command."""


def eventually(look: Callable[[], T], *, within_s: float = 60.0, what: str | Callable[[], str] = "") -> T:
    """Return the first truthy value of `look`; fail when there is none in time, with what was waited for."""
    expires = time.monotonic() + PATIENCE * within_s
    while True:
        if value := look():
            return value
        if time.monotonic() > expires:
            told = what() if callable(what) else what or repr(look)
            raise AssertionError(f"not within {PATIENCE * within_s:.0f} s: {told}, last value {value!r}")
        time.sleep(0.05)
