"""Is the disk of the database full? Then that is said, with what to do, and not that the database is away.

PostgreSQL refuses what it has no room for (SQLSTATE 53100). Without room for its log it ends, and comes back when there
is some; until then only the disk itself can be asked, which is possible where the database is the embedded one.
"""

import os
import time
from pathlib import Path

from django.conf import settings

DISK_FULL = "53100"
NEEDED_BYTES = 16 * 1024 * 1024
"""A segment of the write-ahead log: with less PostgreSQL may end at any commit."""
BELIEVED_FOR_S = 5.0
"""So long a refusal is taken for the state of a disk that cannot be asked."""
_refused_at = 0.0
"""When PostgreSQL last said so, monotonic."""


def explain(error: Exception) -> str:
    """What to tell whoever got an error of the database because its disk is full; empty if that is not why."""
    global _refused_at
    is_refusal = getattr(error.__cause__, "sqlstate", None) == DISK_FULL
    if is_refusal:
        _refused_at = time.monotonic()
    if not is_refusal and free_bytes() >= NEEDED_BYTES:
        return ""
    return (
        f"The disk of the database is full{_where()}: nothing was stored, and what was stored before is safe. "
        "Free some space there, then send it again; nothing has to be restarted."
    )


def complaint() -> str:
    """What is wrong with the disk at this moment, for those who watch over it; empty if nothing is."""
    free = free_bytes()
    if free < NEEDED_BYTES:
        return f"its disk is full{_where()}: free at least {NEEDED_BYTES // 2**20} MiB there"
    if settings.DATABASE_DIRECTORY is None and _refused_at and time.monotonic() - _refused_at < BELIEVED_FOR_S:
        return "its disk is full: free some space on the database's machine"
    return ""


def free_bytes() -> float:
    """That the embedded database may use; infinite where it is not known."""
    directory: Path | None = settings.DATABASE_DIRECTORY
    try:
        found = os.statvfs(directory) if directory else None
    except OSError:
        found = None
    return found.f_bavail * found.f_frsize if found else float("inf")


def _where() -> str:
    if settings.DATABASE_DIRECTORY is None:
        return ""
    return f" ({free_bytes() / 2**20:.1f} MiB free for {settings.DATABASE_DIRECTORY})"
