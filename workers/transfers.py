"""Files on their way between two machines: what there is, by hash, and what arrives, complete or not at all.

What lies in a run's directories was written by code of runs, which may name files as it likes, and put links there also
while they are read: only regular files are sent, and what arrives is written into a directory that nobody else has.
"""

import contextlib
import hashlib
import io
import os
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from environments.disk import open_regular, open_straight, sync

PIECE_BYTES = 32 * 2**20
"""Sent at a time: what is lost with a connection."""
PARTIAL = ".partial"
_MAX_FILES = 100_000


class TransferError(Exception):
    """What arrived is not what was announced, or is announced under a name that cannot be; the message says which."""


class Listed(NamedTuple):
    """One file of a directory, or the one that was asked for itself."""

    name: str
    """Below the directory; empty for a file that stands alone."""
    size: int
    sha256: str


def entries(path: Path, *, follow_links: bool = False) -> list[Listed]:
    """The regular files below a directory, or the file itself, in order. Reads all of them.

    Links are passed over, or `follow_links`: those to files are sent as these. So a model of a hub's cache is sent
    once: its files have their names by links into `blobs`. Raises TransferError.
    """
    if path.is_symlink() and not follow_links:
        return []
    if path.is_file():
        return [_listed(path, "", follow_links=follow_links)]
    found = []
    for directory, names, files in os.walk(path, followlinks=False):
        kept = (name for name in names if not name.endswith(PARTIAL))
        names[:] = sorted(name for name in kept if not (follow_links and name == "blobs" and Path(directory) == path))
        for name in sorted(files):
            file = Path(directory, name)
            if file.is_file() and (follow_links or not file.is_symlink()) and not name.endswith(PARTIAL):
                found.append(_listed(path, file.relative_to(path).as_posix(), follow_links=follow_links))
    if len(found) > _MAX_FILES:
        raise TransferError(f"{path} has {len(found):,} files: not more than {_MAX_FILES:,} are sent")
    return found


def opened(path: Path, name: str, *, follow_links: bool = False) -> io.BufferedReader:
    """A regular file of a directory, or, without a name, the file itself.

    No link is followed below what the path lies in, however late it was put there: whoever reads may be root, and what
    is read was written by code of a run. Raises TransferError.
    """
    file = path.joinpath(*_parts(name)) if name else path
    try:
        if follow_links:
            return open_regular(file, follow_links=True)
        directory = open_straight(path.parent.resolve() / file.parent.relative_to(path.parent))
        try:
            return open_regular(file, at=directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise TransferError(str(error)) from None


def has(path: Path, wanted: Listed) -> bool:
    """Whether a file is there as it should be."""
    try:
        return _listed(path, wanted.name) == wanted
    except TransferError:
        return False


def digest(file: Path) -> str:
    """SHA-256 of a file of ours."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _listed(path: Path, name: str, *, follow_links: bool = False) -> Listed:
    with opened(path, name, follow_links=follow_links) as content:
        return Listed(name, os.fstat(content.fileno()).st_size, hashlib.file_digest(content, "sha256").hexdigest())


def _parts(name: str) -> tuple[str, ...]:
    """Raises TransferError for a name that is none of a file in a directory."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or "\0" in name or ".." in parts:
        raise TransferError(f"{name!r} is no name of a file in a directory")
    return parts


class Arrival:
    """A directory or file that arrives. Nothing is seen under its name before all of it is there."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self._partial = target.with_name(target.name + PARTIAL)

    def received(self, name: str) -> int:
        """How much of a file has arrived, also before a restart."""
        with contextlib.suppress(FileNotFoundError):
            return self._place(name).stat().st_size
        return 0

    def write(self, name: str, offset: int, data: bytes) -> None:
        """Put a piece into its place. Raises TransferError."""
        place = self._place(name)
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            os.pwrite(descriptor, data, offset)
        finally:
            os.close(descriptor)

    def finish(self, wanted: Iterable[Listed]) -> None:
        """Look at all of it and give it its name; what was there under that name is replaced. Raises TransferError."""
        wanted = list(wanted)
        self._partial.parent.mkdir(parents=True, exist_ok=True)
        if not any(entry.name == "" for entry in wanted):
            self._partial.mkdir(exist_ok=True)
        for entry in wanted:
            place = self._place(entry.name)
            if entry.size == 0 and not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.touch()
            if not place.is_file() or place.stat().st_size != entry.size or digest(place) != entry.sha256:
                place.unlink(missing_ok=True)
                raise TransferError(f"{entry.name or self.target.name} did not arrive as it was sent")
            sync(place)
        if self.target.is_dir() and not self.target.is_symlink():
            shutil.rmtree(self.target)
        os.replace(self._partial, self.target)
        sync(self.target.parent)

    def _place(self, name: str) -> Path:
        if not name:
            return self._partial
        return self._partial.joinpath(*_parts(name))
