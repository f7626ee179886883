"""Who a confined program is where we are root. Standard library only.

Each gets a number that nobody else has: the kernel counts processes by number, and two programs with one could signal
each other if they ever met. Its group is that of runs, which may read what runs may read.
"""

import grp
import os
import secrets
from pathlib import Path
from typing import NamedTuple

from environments.sandbox.program import ACCOUNT, SandboxUnavailable

_FIRST, _COUNT = 1_879_048_192, 2**28 - 2
"""Numbers that no convention gives to anybody."""
_LEFT_AT_THE_TOP = 2_000
"""Where not so many exist, as in most containers."""


class Owner(NamedTuple):
    """Numbers of user and group."""

    uid: int
    gid: int


def choose() -> Owner:
    """Of a new program: ourselves, unless we are root. Raises SandboxUnavailable."""
    if os.geteuid() != 0:
        return Owner(os.geteuid(), os.getegid())
    end = _end_of_numbers()
    first, count = (_FIRST, _COUNT) if end > _FIRST + _COUNT else (end - _LEFT_AT_THE_TOP, _LEFT_AT_THE_TOP - 10)
    if first <= 1_000:
        raise SandboxUnavailable(
            f"this container knows only {end} users, and none of them can be spared: give it 65,536, or do not be root"
        )
    uid = first + secrets.randbelow(count)
    try:
        return Owner(uid, grp.getgrnam(ACCOUNT).gr_gid)
    except KeyError:
        return Owner(uid, uid)


def _end_of_numbers() -> int:
    """The first number that does not exist in our user namespace."""
    ranges = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return max(int(first) + int(count) for first, _, count in ranges)
