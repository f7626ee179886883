"""Requests that could not be sent, as files: what lies there survives the process and the power.

    write  *.partial -> fsync -> rename to 000000000007-1f0c2ab9.groups -> fsync of the directory
    send   oldest number first, remove after the answer; what is refused for what it holds becomes *.refused

Several processes may share a directory. A file that two of them send is stored once: its groups have keys.
"""

import errno
import fcntl
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from environments import disk
from environments.client.http import ClientError

_SUFFIX = ".groups"
_REFUSED = ".refused"
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


class SpoolFull(ClientError):
    """The groups were neither sent nor written: the spool holds as much as it may, or the disk is full."""


class Spool:
    """Request bodies of one run in one directory, at most ``max_bytes`` of them."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self.directory = directory
        self._max_bytes = max_bytes
        disk.make_directory(directory)

    def add(self, body: bytes) -> Path:
        """Keep a body; a return means that it is on the disk. Raises SpoolFull."""
        with self._locked():
            used, newest = 0, 0
            for path in self.directory.iterdir():
                if path.suffix == disk.PARTIAL:  # of a process that died: nobody else writes while we hold the lock
                    path.unlink()
                    continue
                used += path.stat().st_size
                if path.name[:12].isdecimal():
                    newest = max(newest, int(path.name[:12]))
            if used + len(body) > self._max_bytes:
                full = f"{self.directory} holds {used} of {self._max_bytes} bytes, {len(body)} more do not fit"
                raise SpoolFull(f"{full}. Wait until the control plane answers, or allow more bytes.")
            # Numbers are used again once a file is gone. The random part keeps a slow sender of the old one from
            # removing the new one.
            path = self.directory / f"{newest + 1:012d}-{uuid.uuid4().hex[:8]}{_SUFFIX}"
            try:
                disk.write_file(path, body)
            except OSError as error:
                if error.errno in _NO_SPACE:
                    raise SpoolFull(f"{self.directory}: {error.strerror}. Make room on the disk.") from error
                raise
            return path

    def files(self) -> list[Path]:
        """What waits to be sent, oldest first."""
        return sorted(self.directory.glob(f"*{_SUFFIX}"))

    @staticmethod
    def read(path: Path) -> bytes | None:
        """The body; None: another process has sent it meanwhile."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def remove(self, path: Path) -> None:
        """It was answered."""
        with self._locked():
            path.unlink(missing_ok=True)

    def set_aside(self, path: Path) -> Path:
        """It was refused for what it holds, and stays for a person to look at."""
        aside = path.with_name(f"{path.name}{_REFUSED}")
        with self._locked():
            if path.exists():  # else another process was told the same
                path.rename(aside)
        return aside

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.directory / ".lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
