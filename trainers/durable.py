"""Directories that are either complete or absent, whatever is killed when.

    write  step_7.partial-3/*  -> fsync files -> manifest.json (names, sizes, SHA-256) -> fsync -> fsync directory
           -> rename to step_7 -> fsync parent
    read   manifest.json first; nothing is loaded that does not match it

Weights and checkpoints both live in such directories. The control plane is told only after the last fsync.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainers.errors import CheckpointCorrupt

MANIFEST = "manifest.json"
_PREFIX = "step_"
_PARTIAL = ".partial-"
_DELETING = ".deleting"


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
    final = step_directory(parent, step)
    partial = final.with_name(f"{final.name}{_PARTIAL}{epoch}")
    parent.mkdir(parents=True, exist_ok=True)
    _remove(partial)
    partial.mkdir()
    write(partial)
    files = []
    for path in sorted(partial.iterdir()):
        path.chmod(0o644)  # some writers leave 0600; an inference server may run as another user
        sha256 = _sync_and_hash(path)
        files.append({"name": path.name, "size_bytes": path.stat().st_size, "sha256": sha256})
    manifest = json.dumps({"step": step, "epoch": epoch, "run": run, "files": files}, indent=1).encode()
    manifest_path = partial / MANIFEST
    manifest_path.write_bytes(manifest)
    _sync(manifest_path)
    _sync(partial)
    if existing := find_directory(parent, step):
        _remove(partial)
        return existing
    _remove(final)  # what is left there does not verify
    partial.rename(final)
    _sync(parent)
    return CompleteDirectory(final, hashlib.sha256(manifest).hexdigest(), _total_bytes(files))


def find_directory(parent: Path, step: int) -> CompleteDirectory | None:
    """The complete directory of `step`, or None when there is none or it does not verify."""
    try:
        return verify_directory(step_directory(parent, step))
    except CheckpointCorrupt:
        return None


def verify_directory(path: Path, manifest_sha256: str | None = None) -> CompleteDirectory:
    """Check every file against the manifest, and the manifest against a known hash. Raises CheckpointCorrupt."""
    try:
        manifest = (path / MANIFEST).read_bytes()
        found = hashlib.sha256(manifest).hexdigest()
        if manifest_sha256 not in (None, found):
            raise CheckpointCorrupt(f"{path / MANIFEST} has SHA-256 {found}, expected {manifest_sha256}")
        files = json.loads(manifest)["files"]
        for entry in files:
            _check_file(path / entry["name"], entry)
    except OSError as error:
        raise CheckpointCorrupt(f"{path}: {error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointCorrupt(f"{path / MANIFEST} is no manifest: {error}") from None
    return CompleteDirectory(path, found, _total_bytes(files))


def newest_step(parent: Path) -> int:
    """Largest step that has a directory under its final name; -1 when there is none."""
    return max(_steps(parent), default=-1)


def sweep_partials(parent: Path, *, epoch: int) -> None:
    """Delete what dead attempts before `epoch` left half done."""
    for path in parent.glob(f"{_PREFIX}*"):
        _, _, writer_epoch = path.name.partition(_PARTIAL)
        if path.name.endswith(_DELETING) or (writer_epoch.isdecimal() and int(writer_epoch) < epoch):
            _remove(path)


def _steps(parent: Path) -> dict[int, Path]:
    numbered = ((path.name.removeprefix(_PREFIX), path) for path in parent.glob(f"{_PREFIX}*"))
    return {int(number): path for number, path in numbered if number.isdecimal()}


def _check_file(path: Path, entry: dict[str, Any]) -> None:
    size_bytes = path.stat().st_size
    if size_bytes != entry["size_bytes"]:
        raise CheckpointCorrupt(f"{path} has {size_bytes} bytes, expected {entry['size_bytes']}")
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
            raise CheckpointCorrupt(f"{path} does not have its SHA-256")


def _total_bytes(files: list[dict[str, Any]]) -> int:
    return sum(entry["size_bytes"] for entry in files)


def _remove(path: Path) -> None:
    """Delete a directory; its name changes first, so that a half deleted one never passes for a step."""
    if not path.exists():
        return
    doomed = path
    if not path.name.endswith(_DELETING):
        doomed = path.with_name(f"{path.name}{_DELETING}")
        shutil.rmtree(doomed, ignore_errors=True)
        path.rename(doomed)
    shutil.rmtree(doomed)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_and_hash(path: Path) -> str:
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    return sha256
