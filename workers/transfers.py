"""Files on their way between two machines: what there is, by hash, and what arrives, complete or not at all.

What lies in a run's directories was written by code of runs, which may name files as it likes, and put links there also
while they are read: only regular files are sent, and what arrives is written into a directory that nobody else has.
"""

import io
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from xxhash import xxh3_128

from environments.disk import open_regular, open_straight, sync

PARTIAL = ".partial"
_CHUNK_BYTES = 2**22
_MAX_FILES = 100_000
_AT_ONCE = 4
"""Files that are hashed."""


class TransferError(Exception):
    """What arrived is not what was announced, or is announced under a name that cannot be; the message says which."""


class Listed(NamedTuple):
    """One file of a directory, or the one that was asked for itself."""

    name: str
    """Below the directory; empty for a file that stands alone."""
    size: int
    digest: str
    """XXH3, of 128 bits: it tells what went wrong on the way, at the speed of memory. Who has no key sends nothing, and
    rows know the files of versions and checkpoints by SHA-256."""


def entries(path: Path, *, follow_links: bool = False) -> list[Listed]:
    """The regular files below a directory, or the file itself, in order. Reads all of them, several at a time.

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
                found.append(file.relative_to(path).as_posix())
    if len(found) > _MAX_FILES:
        raise TransferError(f"{path} has {len(found):,} files: not more than {_MAX_FILES:,} are sent")
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="hash") as pool:
        return list(pool.map(lambda name: _listed(path, name, follow_links=follow_links), found))


def fingerprint(found: Iterable[Listed]) -> str:
    """The same for the same files in the same order, and for nothing else."""
    return xxh3_128(json.dumps(list(found)).encode()).hexdigest()


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
    """Of a file of ours."""
    with file.open("rb") as content:
        return _digest(content)


def _listed(path: Path, name: str, *, follow_links: bool = False) -> Listed:
    with opened(path, name, follow_links=follow_links) as content:
        return Listed(name, os.fstat(content.fileno()).st_size, _digest(content))


def _digest(content: io.BufferedReader) -> str:
    found, room = xxh3_128(), memoryview(bytearray(_CHUNK_BYTES))
    while got := content.readinto(room):
        found.update(room[:got])
    return found.hexdigest()


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
        self._digests: dict[str, str] = {}
        """Of what was hashed on its way."""

    def received(self) -> dict[str, int]:
        """How much of each file has arrived, also before a restart."""
        if self._partial.is_file():
            return {"": self._partial.stat().st_size}
        files = (file for file in self._partial.rglob("*") if file.is_file() and not file.is_symlink())
        return {file.relative_to(self._partial).as_posix(): file.stat().st_size for file in files}

    def take(self, name: str, size: int, read_into: Callable[[memoryview], int], *, offset: int = 0) -> None:
        """Write a file as it comes, from an offset to its end, and bring it to the disk. Raises TransferError where
        there is no more of it before it has its size.

        What was written is hashed by another thread while the next is on its way. `read_into` is as that of a file.
        """
        place = self._place(name)
        place.parent.mkdir(parents=True, exist_ok=True)
        self._digests.pop(name, None)
        found, is_whole = xxh3_128(), offset == 0
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            with ThreadPoolExecutor(1, thread_name_prefix="hash") as beside:
                hashing: Future[None] | None = None
                for buffer in itertools.cycle([memoryview(bytearray(_CHUNK_BYTES)) for _ in range(2)]):
                    if offset == size:
                        break
                    chunk = buffer[: _fill(buffer[: size - offset], read_into)]
                    os.pwrite(descriptor, chunk, offset)
                    offset += len(chunk)
                    if hashing is not None:
                        hashing.result()  # so the buffer before this one may be filled again
                    hashing = beside.submit(found.update, chunk)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_whole:
            self._digests[name] = found.hexdigest()

    def finish(self, wanted: Iterable[Listed]) -> None:
        """Look at all of it and give it its name; what was there under that name is replaced. Raises TransferError.

        A directory in which there is nothing replaces none: what arrives by itself may lie in that, whole or in part.
        """
        wanted = list(wanted)
        self._partial.parent.mkdir(parents=True, exist_ok=True)
        if not wanted:
            self.target.mkdir(exist_ok=True)
            sync(self.target.parent)
            return
        if not any(entry.name == "" for entry in wanted):
            self._partial.mkdir(exist_ok=True)
        wrong = [entry for entry in wanted if not self._has_arrived(entry)]
        if wrong:  # all of them at once: they may have been left by another attempt, which nobody is to count on
            for entry in wrong:
                self._place(entry.name).unlink(missing_ok=True)
            raise TransferError(f"{wrong[0].name or self.target.name} did not arrive as it was sent")
        if self.target.is_dir() and not self.target.is_symlink():
            shutil.rmtree(self.target)
        os.replace(self._partial, self.target)
        sync(self.target.parent)

    def _has_arrived(self, wanted: Listed) -> bool:
        """Whether a file is there as it was sent; then it is on the disk."""
        place = self._place(wanted.name)
        if wanted.size == 0 and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        if not place.is_file() or place.stat().st_size != wanted.size or self._found(wanted.name) != wanted.digest:
            return False
        sync(place)
        return True

    def _found(self, name: str) -> str:
        return self._digests.get(name) or digest(self._place(name))

    def _place(self, name: str) -> Path:
        if not name:
            return self._partial
        return self._partial.joinpath(*_parts(name))


def _fill(buffer: memoryview, read_into: Callable[[memoryview], int]) -> int:
    """Fill a buffer, as far as there is something. Raises TransferError where there is nothing at all."""
    at = 0
    while at < len(buffer) and (got := read_into(buffer[at:])):
        at += got
    if not at:
        raise TransferError("it ended before it was whole")
    return at
