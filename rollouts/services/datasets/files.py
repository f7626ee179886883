"""A version of a dataset as files, in constant memory; killed at any moment, it goes on where the last chunk ended.

    rows ─► .NAME.rows, chunk by chunk, on the disk before ─► .NAME.journal says so
            all of them there ─► manifest ─► NAME: the rows themselves, gzipped, or as a table

A journal has the position of the next member, and size and hash of what is written; what was written behind that is cut
off. One process writes at a time: it locks the rows. Which bytes come out is a function of the version alone.
"""

import fcntl
import gzip
import hashlib
import importlib.metadata
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from environments import disk
from environments.types import Split
from rollouts.crashpoints import CrashPoint, crash_point
from rollouts.errors import Conflict
from rollouts.formats.tables import ParquetLines
from rollouts.models import DatasetVersion, ExportForm
from rollouts.services.datasets import rendering
from rollouts.services.datasets.card import describe

CHUNK_BYTES = 4 * 2**20
NAMES = {Split.TRAIN.value: "train", Split.EVAL.value: "validation"}
"""What files of a split are called, as everybody calls them."""
MANIFEST, CARD = "manifest.json", "README.md"
_PACKED = (".gz", ".parquet")
"""Ends of the names of files that are not the rows themselves."""
RELEASE = importlib.metadata.version("rollyard")
_READ_BYTES = 2**20


class ExportProgress(NamedTuple):
    """How far the files are."""

    members: int
    rows: int
    size_bytes: int


class _Part(msgspec.Struct):
    """What is on the disk of one split."""

    size_bytes: int = 0
    rows: int = 0
    sha256: str = ""


class _Journal(msgspec.Struct):
    of: str
    """What is being written: another thing begins anew."""
    position: int = 0
    parts: dict[str, _Part] = {}
    left_out: dict[str, int] = {}
    sources: dict[str, int] = {}
    """JSON of (run, environment, its version) -> rows."""
    packed: dict[str, _Part] = {}
    """The complete files; empty: there is none yet."""


def write_directory(
    version: DatasetVersion,
    form: ExportForm,
    directory: Path,
    *,
    suffix: str,
    told: Callable[[ExportProgress], None] = lambda _progress: None,
) -> dict[str, Any]:
    """Write a directory that `datasets.load_dataset` loads: a file of each split, a card and the manifest it returns.

    `told` hears after every chunk how far it is; what it raises ends the writing, and the next call goes on. Raises
    Untabular for rows that no table holds, Conflict while another process writes it.
    """
    disk.make_directory(directory)
    names = {split: f"{name}{suffix}" for split, name in NAMES.items()}
    with writing(version, form, {split: directory / name for split, name in names.items()}, told=told) as manifest:
        # Lines of a file stay as they are, with keys of their own: those `datasets` has to look at itself.
        is_table = suffix == ".parquet" or not version.members.filter(row__isnull=False).exists()
        card = describe(version, form, manifest, is_table=is_table).encode()
        manifest["files"][CARD] = {"size_bytes": len(card), "sha256": hashlib.sha256(card).hexdigest()}
        disk.write_file(directory / CARD, card)
        disk.write_file(directory / MANIFEST, _json(manifest))
    return manifest


def write_file(
    version: DatasetVersion,
    form: ExportForm,
    path: Path,
    *,
    split: Split = Split.TRAIN,
    told: Callable[[ExportProgress], None] = lambda _progress: None,
) -> dict[str, Any]:
    """Write the rows of one split to a file, and the manifest that it returns to NAME.manifest.json beside it.

    The end of its name says how: `.parquet`, `.gz`, else lines of JSON. Raises as `write_directory`.
    """
    with writing(version, form, {split.value: path}, told=told) as manifest:
        disk.write_file(path.with_name(f"{path.name}.{MANIFEST}"), _json(manifest))
    return manifest


@contextmanager
def writing(
    version: DatasetVersion, form: ExportForm, paths: Mapping[str, Path], *, told: Callable[[ExportProgress], None]
) -> Iterator[dict[str, Any]]:
    """Write the rows of some splits, yield what there is to say of them, and give the files their names at the end."""
    rendering.check_form(version, form)
    with ExitStack() as stack:
        rows = _Rows(version, form, paths, stack)
        if not rows.are_packed():
            rows.write(told)
            rows.pack()
        yield _manifest(version, form, rows)
        rows.give_names()
        rows.forget()
        disk.sync(rows.journal_path.parent)


class _Rows:
    """The rows of some splits on the disk, and the journal of them. Holds a lock until `stack` is left."""

    def __init__(self, version: DatasetVersion, form: ExportForm, paths: Mapping[str, Path], stack: ExitStack) -> None:
        self._version, self._form = version, form
        self._paths = dict(paths)
        first = next(iter(paths.values()))
        self.journal_path = first.with_name(f".{first.name}.journal")
        self._files = {split: stack.enter_context(_locked(self.place(split))) for split in paths}
        self._journal, self._hashes = self._resume()

    def place(self, split: str) -> Path:
        """Where the rows of a split are until they are all there."""
        return self._paths[split].with_name(f".{self._paths[split].name}.rows")

    def packed_place(self, split: str) -> Path:
        """Where the complete file is until it gets its name: rows that stay what they are stay where they are."""
        path = self._paths[split]
        return path.with_name(f".{path.name}.packed") if path.suffix in _PACKED else self.place(split)

    @property
    def counts(self) -> dict[str, int]:
        """Rows by split."""
        return {split: part.rows for split, part in self._journal.parts.items()}

    @property
    def left_out(self) -> dict[str, int]:
        """Members of these splits that are no row, by why."""
        return dict(sorted(self._journal.left_out.items()))

    @property
    def sources(self) -> list[dict[str, Any]]:
        """Where the rows are from."""
        return [json.loads(source) | {"rows": rows} for source, rows in sorted(self._journal.sources.items())]

    @property
    def files(self) -> dict[str, dict[str, Any]]:
        """Of each complete file its rows, size and hash."""
        return {
            self._paths[split].name: {"rows": part.rows, "size_bytes": part.size_bytes, "sha256": part.sha256}
            for split, part in self._journal.packed.items()
        }

    def write(self, told: Callable[[ExportProgress], None]) -> None:
        """Bring all rows to the disk, from where the journal ends."""
        chunk: dict[str, list[bytes]] = {split: [] for split in self._paths}
        size = 0
        told(self._progress())
        for page in rendering.pages(self._version, self._form, self._journal.position, splits=self._paths.keys()):
            for split, row in page.rows:
                chunk[split].append(row)
                size += len(row)
            self._journal.position = page.next_position
            self._journal.left_out = dict(Counter(self._journal.left_out) + page.left_out)
            self._journal.sources = dict(Counter(self._journal.sources) + page.sources)
            if size >= CHUNK_BYTES:
                self._append(chunk)
                chunk, size = {split: [] for split in self._paths}, 0
                told(self._progress())
        self._append(chunk)
        told(self._progress())

    def are_packed(self) -> bool:
        """Whether every complete file is there, under its name or not yet."""
        packed = self._journal.packed
        return bool(packed) and all(self._found(split) is not None for split in packed)

    def pack(self) -> None:
        """Make the complete files: always one to train on, one to validate on if it has rows."""
        for split in self._paths:
            part = self._journal.parts[split]
            if part.rows or split == next(iter(self._paths)):
                self._journal.packed[split] = self._pack(split, part)
        self._note()

    def give_names(self) -> None:
        """Put the complete files where they were asked for."""
        for split, path in self._paths.items():
            if split not in self._journal.packed:
                path.unlink(missing_ok=True)
            elif (found := self._found(split)) is not None and found != path:
                found.replace(path)
            crash_point(CrashPoint.MID_EXPORT)

    def forget(self) -> None:
        """Remove what nobody needs any more once the files have their names."""
        self.journal_path.unlink(missing_ok=True)
        for split in self._paths:
            self.place(split).unlink(missing_ok=True)

    def _found(self, split: str) -> Path | None:
        part = self._journal.packed[split]
        return next((each for each in (self.packed_place(split), self._paths[split]) if _is(each, part)), None)

    def _pack(self, split: str, part: _Part) -> _Part:
        """Bring rows into the form that the name asks for; rows of JSON stay what they are."""
        packed, source = self.packed_place(split), self.place(split)
        if packed == source:
            return part
        with source.open("rb") as lines, disk.writing(packed) as file:
            if packed.name.endswith(".gz.packed"):
                with gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0, compresslevel=6) as gzipped:
                    while data := lines.read(_READ_BYTES):
                        gzipped.write(data)
            else:
                with ParquetLines(file, self._form.value) as table:
                    for line in lines:
                        table.write(line)
        size = packed.stat().st_size
        with packed.open("rb") as done:
            return _Part(size, part.rows, _hash(done, size).hexdigest())

    def _append(self, chunk: Mapping[str, list[bytes]]) -> None:
        for split, rows in chunk.items():
            data, file, part = b"".join(rows), self._files[split], self._journal.parts[split]
            if data:
                file.write(data)
                file.flush()
                crash_point(CrashPoint.MID_EXPORT)
                os.fsync(file.fileno())
                self._hashes[split].update(data)
            part.size_bytes += len(data)
            part.rows += len(rows)
            part.sha256 = self._hashes[split].hexdigest()
        self._note()

    def _note(self) -> None:
        disk.write_file(self.journal_path, msgspec.json.encode(self._journal))
        crash_point(CrashPoint.MID_EXPORT)

    def _progress(self) -> ExportProgress:
        parts = self._journal.parts.values()
        return ExportProgress(
            self._journal.position, sum(each.rows for each in parts), sum(each.size_bytes for each in parts)
        )

    def _resume(self) -> tuple[_Journal, dict[str, Any]]:
        """What the journal says, if the rows are what it says; else nothing, and no rows."""
        # A newer release may write other rows: it begins anew.
        what = [RELEASE, self._version.digest, self._version.pk, self._form.value, sorted(self._paths)]
        identity = hashlib.sha256(json.dumps(what).encode()).hexdigest()
        with suppress(OSError, msgspec.MsgspecError):
            journal = msgspec.json.decode(self.journal_path.read_bytes(), type=_Journal)
            if journal.of == identity and journal.parts.keys() == self._paths.keys():
                hashes = {split: _hash(self._files[split], part.size_bytes) for split, part in journal.parts.items()}
                if all(hashes[split].hexdigest() == part.sha256 for split, part in journal.parts.items() if part.rows):
                    for split, part in journal.parts.items():
                        self._files[split].truncate(part.size_bytes)
                        self._files[split].seek(part.size_bytes)
                    return journal, hashes
                self._journal = journal
                if self.are_packed():
                    return journal, hashes  # of rows of JSON some are what has its name already
        for file in self._files.values():
            file.truncate(0)
            file.seek(0)
        return _Journal(identity, parts={split: _Part() for split in self._paths}), {
            split: hashlib.sha256() for split in self._paths
        }


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """A file that is there from now on, and nobody else's while the block lasts."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    with open(descriptor, "r+b") as file:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"{path.parent} is being written to by another process: wait until it is done.") from None
        yield file


def _hash(file: BinaryIO, size: int) -> Any:
    """Of the first bytes of a file; of fewer if it has fewer."""
    digest = hashlib.sha256()
    file.seek(0)
    while size > 0 and (data := file.read(min(size, _READ_BYTES))):
        digest.update(data)
        size -= len(data)
    return digest


def _is(path: Path, part: _Part) -> bool:
    """Whether a file is what it was."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            return size == part.size_bytes and _hash(file, size).hexdigest() == part.sha256
    except OSError:
        return False


def _manifest(version: DatasetVersion, form: ExportForm, rows: _Rows) -> dict[str, Any]:
    dataset = version.dataset
    return {
        "dataset": dataset.name,
        "version": version.version,
        "digest": version.digest,
        "form": form.value,
        "recipe": version.recipe,
        "parent": str(version.parent) if version.parent else None,
        "note": version.note,
        "licence": dataset.licence,
        "made_by": version.actor,
        "made_at": version.at.isoformat(),
        "examples": version.member_count,
        "rows": {NAMES[split]: count for split, count in rows.counts.items()},
        "left_out": rows.left_out,
        "sources": rows.sources,
        "files": rows.files,
        "rollyard": RELEASE,
    }


def _json(manifest: Mapping[str, Any]) -> bytes:
    return json.dumps(manifest, ensure_ascii=False, indent=2).encode() + b"\n"
