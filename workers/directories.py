"""Directories that a process has to itself: what one left behind that was killed, the next to make one takes away.

For as long as a process lives it holds a lock on a file beside its directory, and however it ends, the lock is gone. So
a driver's sockets do not pile up, nor what was brought to a node for jobs that were killed there: whole models.
"""

import fcntl
import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from environments import disk

_HELD = ".held"
_NAMES = f"rollyard-*{_HELD}"


class OwnDirectory:
    """One of them, until `remove`. Taking away what others left may take as long as deleting their files does."""

    def __init__(self, path: Path, *, mode: int = 0o700) -> None:
        """Make it. Raises FileExistsError: whoever made it before us would hold what we put there."""
        _take_away_abandoned(path.parent)
        path.mkdir(mode=0o700)
        path.chmod(mode)
        self.path = path
        self._lock = _hold(path)

    @classmethod
    def temporary(cls, prefix: str, *, mode: int = 0o700) -> Self:
        """One of any name, where temporary files are."""
        return cls(Path(tempfile.gettempdir()) / f"{prefix}{secrets.token_hex(6)}", mode=mode)

    def remove(self) -> None:
        """Delete it with all that it has."""
        _delete(self.path)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}{_HELD}")


def _hold(path: Path) -> int | None:
    """Lock the file that says whether anybody has a directory. None where that cannot be done, as on a file system that
    has no locks: then nobody takes the directory for abandoned either."""
    new = path.with_name(f".{path.name}{_HELD}")
    try:
        lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(new, _lock_of(path))  # under its name it is never there without being locked
    except OSError:
        os.close(lock)
        new.unlink(missing_ok=True)
        return None
    return lock


def _delete(path: Path) -> None:
    disk.clear_away(path)
    if not path.exists():
        _lock_of(path).unlink(missing_ok=True)


def _take_away_abandoned(parent: Path) -> None:
    """Delete our own directories that nobody has. Links are not followed, and what belongs to others is let be."""
    for file in parent.glob(_NAMES):
        path = file.with_name(file.name.removesuffix(_HELD))
        with suppress(OSError):
            lock = os.open(file, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_ours(path):
                    _delete(path)
            finally:
                os.close(lock)


def _is_ours(path: Path) -> bool:
    try:
        return not path.is_symlink() and path.lstat().st_uid == os.geteuid()
    except FileNotFoundError:
        return True
