"""What other accounts of the machine could do."""

import stat
from collections.abc import Iterator
from pathlib import Path


def open_to_others(directory: Path) -> Iterator[Path]:
    """What another account may list, read or write below a directory; programs are no secret."""
    for path in directory.iterdir():
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode) or path.name.startswith("postgresql-"):
            continue
        if mode & 0o066:
            yield path
        if stat.S_ISDIR(mode) and mode & 0o011:
            yield from open_to_others(path)
