"""Directories that a process has to itself: what one left behind that was killed, the next to make one takes away.

For as long as a process lives it holds a lock on a file beside its directory, and however it ends, the lock is gone. So
a driver's sockets do not pile up, nor what was brought to a node for jobs that were killed there: whole models.

The file names the machine since its last boot: where nodes share the place but not the locks, each clears its own. One
that somebody else made says nothing, wherever everybody may make files.
"""

import fcntl
import os
import secrets
import socket
import stat
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from environments import disk

_HELD = ".held"
_NAMES = f"rollyard-*{_HELD}"
_CLEARING_S = 30.0
"""For which a process waits until there is room again; what is left goes on beside it."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class OwnDirectory:
    """One of them, until `remove`."""

    def __init__(self, path: Path, *, mode: int = 0o700) -> None:
        """Make it. Blocks for up to _CLEARING_S while it deletes what others left. Raises FileExistsError: whoever made
        it before us would hold what we put there."""
        clearing = threading.Thread(target=_take_away_abandoned, args=(path.parent,), name="clearing", daemon=True)
        clearing.start()
        clearing.join(_CLEARING_S)
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
        os.write(lock, _machine())
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


def _machine() -> bytes:
    """Which machine this is, until it is booted again."""
    try:
        return _BOOT.read_bytes()
    except OSError:
        return socket.gethostname().encode()


def _take_away_abandoned(parent: Path) -> None:
    """Delete our own directories that nobody has. Links are not followed, and what belongs to others is let be."""
    for file in parent.glob(_NAMES):
        with suppress(OSError):
            if _is_ours(file.lstat(), stat.S_IFREG):
                _delete_unless_held(file)


def _delete_unless_held(file: Path) -> None:
    """Raises OSError where somebody has its directory."""
    path = file.with_name(file.name.removesuffix(_HELD))
    lock = os.open(file, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held = os.fstat(lock)
        if not _is_ours(held, stat.S_IFREG) or not held.st_nlink or os.read(lock, 100) != _machine():
            return
        if not os.path.lexists(path) or _is_ours(path.lstat(), stat.S_IFDIR):
            _delete(path)
    finally:
        os.close(lock)


def _is_ours(found: os.stat_result, kind: int) -> bool:
    return found.st_uid == os.geteuid() and stat.S_IFMT(found.st_mode) == kind
