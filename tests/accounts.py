"""What other accounts of the machine could do."""

import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from workers.launchers.sandbox import ACCOUNT


def open_to_others(directory: Path) -> Iterator[Path]:
    """What another account may list, read or write below a directory; programs are no secret.

    The group of the account that runs have is no other: nobody is in it, and it gets no further than its sandboxes.
    """
    groups = {entry.pw_gid for entry in pwd.getpwall() if entry.pw_name == ACCOUNT}
    for path in directory.iterdir():
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode) or path.name.startswith("postgresql-"):
            continue
        others = 0o007 if status.st_gid in groups else 0o077
        if status.st_mode & others & 0o066:
            yield path
        if stat.S_ISDIR(status.st_mode) and status.st_mode & others & 0o011:
            yield from open_to_others(path)
