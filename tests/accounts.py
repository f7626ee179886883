"""Other accounts of the machine: what they could do, and what it takes to be one."""

import pwd
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from controlplane.up.accounts import closed_to_others
from workers.launchers.sandbox import ACCOUNT

_OPENED = """
set -e
mount --bind "$1" /mnt
mount -t tmpfs -o mode=755 tmpfs "$2"
(umask 022 && mkdir -p "$1")
mount --bind /mnt "$1"
umount /mnt
shift 2
exec "$@"
"""


def become(account: str) -> list[str]:
    """What to put before a command of our interpreter so that it is another account's. For root.

    Where the interpreter lies in a directory that is closed to others, such as /root, the command has a mount namespace
    in which that directory holds nothing but the interpreter.
    """
    drop = ["setpriv", f"--reuid={account}", f"--regid={account}", "--init-groups"]
    closed = closed_to_others(Path(sys.base_prefix))
    if closed is None:
        return drop
    return ["unshare", "--mount", "sh", "-c", _OPENED, "sh", sys.base_prefix, str(closed), *drop]


def let_others_pass(directory: Path) -> None:
    """Let every account pass into a directory below the temporary one. Those of pytest are closed."""
    top = Path(tempfile.gettempdir()).resolve()
    for each in (directory, *directory.parents):
        if each.is_relative_to(top) and each != top:
            each.chmod(each.stat().st_mode | stat.S_IXGRP | stat.S_IXOTH)


def open_to_others(directory: Path) -> Iterator[Path]:
    """What another account may list, read or write below a directory; programs are no secret.

    The group of the account that runs have is no other: nobody is in it, and it gets no further than its sandboxes.
    """
    groups = {entry.pw_gid for entry in pwd.getpwall() if entry.pw_name == ACCOUNT}
    for path in directory.iterdir():
        try:
            status = path.lstat()
        except FileNotFoundError:  # Who writes here has removed it meanwhile.
            continue
        if stat.S_ISLNK(status.st_mode) or path.name.startswith("postgresql-"):
            continue
        others = 0o007 if status.st_gid in groups else 0o077
        if status.st_mode & others & 0o066:
            yield path
        if stat.S_ISDIR(status.st_mode) and status.st_mode & others & 0o011:
            yield from open_to_others(path)
