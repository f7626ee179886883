"""Directories that are either complete or absent, whatever is killed when.

    write  step_7.partial-3/*  -> fsync files -> manifest.json (names, sizes, SHA-256) -> fsync -> fsync directory
           -> rename to step_7 -> fsync parent
    read   manifest.json first; nothing is loaded that does not match it

Weights and checkpoints both live in such directories. Several ranks may fill one: the first opens and seals it, and in
between each brings files to the disk. The control plane is told only after the last fsync.
"""

import hashlib
import json
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

import msgspec

from environments import disk
from trainers.errors import CheckpointCorrupt

MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 16 * 2**20
_PREFIX = "step_"
_PARTIAL = ".partial-"
_LEAST_S = 600.0
"""To read files to their end, whatever of them is on the disk."""
_SLOWEST_BYTES_PER_S = 20e6
"""Of shared storage."""
_CHUNK_BYTES = 2**20
_PIECES_AHEAD = 4
_SYNC_BYTES = 2**29


class ManifestFile(msgspec.Struct):
    """A file as the manifest of its directory has it."""

    name: str
    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct):
    """What a manifest says that readers go by. Who wrote it may be hostile."""

    files: list[ManifestFile]


@dataclass(frozen=True)
class CompleteDirectory:
    """A directory whose files all match its manifest."""

    path: Path
    manifest_sha256: str
    size_bytes: int
    """Of the files, without the manifest."""


def step_directory(parent: Path, step: int) -> Path:
    """Where step `step` lives."""
    return parent / f"{_PREFIX}{step}"


def write_directory(
    parent: Path, step: int, write: Callable[[Path], None], *, epoch: int, run: str
) -> CompleteDirectory:
    """Let `write` fill a new directory, then make it durable as step `step`. A complete one that is there wins."""
    partial = open_partial(parent, step, epoch=epoch)
    write(partial)
    return hash_and_seal(partial, epoch=epoch, run=run)


def partial_directory(parent: Path, step: int, *, epoch: int) -> Path:
    """Where the files of step `step` are before they are complete. Every rank computes the same path."""
    final = step_directory(parent, step)
    return final.with_name(f"{final.name}{_PARTIAL}{epoch}")


def open_partial(parent: Path, step: int, *, epoch: int) -> Path:
    """Make the empty directory that is to become step `step`. Only rank 0 calls this."""
    partial = partial_directory(parent, step, epoch=epoch)
    parent.mkdir(parents=True, exist_ok=True)
    disk.remove_directory(partial)
    partial.mkdir()
    return partial


def hash_and_seal(partial: Path, *, epoch: int, run: str) -> CompleteDirectory:
    """Bring every file in `partial` to the disk, and seal it. Takes as long as to write and read all of them."""
    digests = {path.name: sync_and_hash(path) for path in partial.iterdir()}
    return seal_partial(partial, digests, epoch=epoch, run=run)


def seal_partial(partial: Path, digests: Mapping[str, str], *, epoch: int, run: str) -> CompleteDirectory:
    """Write the manifest of the files in `partial` and give the directory its name. A complete one that is there wins.

    `digests` holds the SHA-256 of every file, from `sync_and_hash`: who wrote a file has also brought it to the disk.
    """
    final = partial.with_name(partial.name.partition(_PARTIAL)[0])
    step = int(final.name.removeprefix(_PREFIX))
    files = [ManifestFile(path.name, path.stat().st_size, digests[path.name]) for path in sorted(partial.iterdir())]
    content = {"step": step, "epoch": epoch, "run": run, "files": msgspec.to_builtins(files)}
    manifest = json.dumps(content, indent=1).encode()
    manifest_path = partial / MANIFEST
    manifest_path.write_bytes(manifest)
    disk.sync(manifest_path)
    disk.sync(partial)
    if existing := find_directory(partial.parent, step):
        disk.remove_directory(partial)
        return existing
    disk.remove_directory(final)  # what is left there does not verify
    partial.rename(final)
    disk.sync(partial.parent)
    return CompleteDirectory(final, hashlib.sha256(manifest).hexdigest(), _total_bytes(files))


def sync_and_hash(path: Path) -> str:
    """Bring a file to the disk; returns its SHA-256."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    return sha256


class HashedFile:
    """A new file that is hashed and brought to the disk as it is written, by threads, while the next piece is fetched.

    Nobody may change a piece before the file is closed. Raises OSError, at the latest when it is.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._sha256 = hashlib.sha256()
        self._hashing, self._writing = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._under_way: deque[Future[None]] = deque()
        self._unsynced = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file, self._hashing, self._writing:
            if kind is None:
                self._wait(ahead=0)
                self._file.flush()
                os.fsync(self._file.fileno())

    @property
    def sha256(self) -> str:
        """Of a file that is closed."""
        return self._sha256.hexdigest()

    def write(self, piece: bytes | memoryview) -> None:
        """Add a piece; waits while too many before it are not done."""
        self._under_way.append(self._hashing.submit(self._sha256.update, piece))
        self._under_way.append(self._writing.submit(self._write, memoryview(piece)))
        self._wait(_PIECES_AHEAD)

    def _write(self, piece: memoryview) -> None:
        self._file.write(piece)
        self._unsynced += piece.nbytes
        if self._unsynced > _SYNC_BYTES:  # so that the last sync has little left
            self._file.flush()
            os.fdatasync(self._file.fileno())
            self._unsynced = 0

    def _wait(self, ahead: int) -> None:
        while len(self._under_way) > 2 * ahead:
            self._under_way.popleft().result()


def find_directory(parent: Path, step: int) -> CompleteDirectory | None:
    """The complete directory of `step`, or None when there is none or it does not verify."""
    try:
        return verify_directory(step_directory(parent, step))
    except CheckpointCorrupt:
        return None


def verify_directory(path: Path, manifest_sha256: str | None = None) -> CompleteDirectory:
    """Check every file against the manifest, and the manifest against a known hash. Raises CheckpointCorrupt."""
    try:
        manifest = disk.read_regular(path / MANIFEST, MAX_MANIFEST_BYTES)
        found = hashlib.sha256(manifest).hexdigest()
        if manifest_sha256 not in (None, found):
            raise CheckpointCorrupt(f"{path / MANIFEST} has SHA-256 {found}, expected {manifest_sha256}")
        files = msgspec.json.decode(manifest, type=Manifest).files
        reading = Reading()
        for entry in files:
            _check_file(path / _plain(entry.name), entry, reading)
    except OSError as error:
        raise CheckpointCorrupt(f"{path}: {error}") from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CheckpointCorrupt(f"{path / MANIFEST} is no manifest: {error}") from None
    return CompleteDirectory(path, found, _total_bytes(files))


class Reading:
    """Files that are read to their end one after another, in a time that what of them is on the disk accounts for.

    To make a file of terabytes that is one hole costs nothing, nor does to give one file thousands of names.
    """

    def __init__(self) -> None:
        self._give_up_at = time.monotonic() + _LEAST_S
        self._counted: set[tuple[int, int]] = set()

    def sha256(self, file: BinaryIO) -> str:
        """Of the whole file. Raises OSError, of which TimeoutError is one."""
        status = os.fstat(file.fileno())
        if (status.st_dev, status.st_ino) not in self._counted:
            self._counted.add((status.st_dev, status.st_ino))
            self._give_up_at += status.st_blocks * 512 / _SLOWEST_BYTES_PER_S
        found = hashlib.sha256()
        while chunk := file.read(_CHUNK_BYTES):
            found.update(chunk)
            if time.monotonic() > self._give_up_at:
                raise TimeoutError("reading it took longer than what of it is on the disk accounts for")
        return found.hexdigest()


def sweep_partials(parent: Path, *, epoch: int) -> None:
    """Delete partial directories of trainers with a fencing epoch below `epoch`, and what is left of deleted ones."""
    for path in parent.glob(f"{_PREFIX}*"):
        _, _, writer_epoch = path.name.partition(_PARTIAL)
        if path.name.endswith(disk.DELETING):
            shutil.rmtree(path, ignore_errors=True)  # the control plane may be at it as well
        elif writer_epoch.isdecimal() and int(writer_epoch) < epoch:
            disk.remove_directory(path)


def _plain(name: str) -> str:
    """The name, if it is that of a file in the directory itself: who wrote the manifest may be hostile."""
    if not name or Path(name).name != name or name == "..":
        raise ValueError(f"{name[:100]!r} is no file's name")
    return name


def _check_file(path: Path, entry: ManifestFile, reading: Reading) -> None:
    with disk.open_regular(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes != entry.size_bytes:
            raise CheckpointCorrupt(f"{path} has {size_bytes} bytes, expected {entry.size_bytes}")
        if reading.sha256(file) != entry.sha256:
            raise CheckpointCorrupt(f"{path} does not have its SHA-256")


def _total_bytes(files: Iterable[ManifestFile]) -> int:
    return sum(entry.size_bytes for entry in files)
