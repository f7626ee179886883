"""Directories in which others write and remove files while a test looks through them."""

import os
from collections.abc import Iterator
from pathlib import Path


def files_below(directory: Path) -> Iterator[Path]:
    """Regular files, wherever below, and links to none. `Path.rglob` raises when a directory goes meanwhile."""
    for place, _, names in os.walk(directory):
        for path in (Path(place, name) for name in names):
            if path.is_file() and not path.is_symlink():
                yield path


def content_of(path: Path) -> bytes:
    """What is in a file, or in one of `/proc`; nothing, once it or its process is gone."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
