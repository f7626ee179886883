"""The accounts that root gives others' code, and what that of runs is given of the files.

Everything that the control plane writes is closed to others. So what a sandbox may write has to belong to the account,
and what it may read has to be open to its group; the way there is closed to it all the same.
"""

import fcntl
import os
import pwd
import stat
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from environments.disk import open_straight
from workers.launchers.sandbox import ACCOUNT, SandboxUnavailable

_LOCK = "/run/rollyard-accounts.lock"
"""Where only root may make a file."""


class AccountMissing(RuntimeError):
    """A system account is missing and cannot be made."""


def account_of_runs() -> str:
    """Its name, making it when it is missing; "" where we are not root. Raises SandboxUnavailable."""
    try:
        return ensure_account(ACCOUNT)
    except AccountMissing as error:
        raise SandboxUnavailable(
            f"runs of root need one of their own: {error}. Make it with useradd --system, or start as another user"
        ) from error


def ensure_account(name: str) -> str:
    """The system account `name`, which is made when it is missing; "" where we are not root. Raises AccountMissing."""
    if os.geteuid() != 0:
        return ""
    if _is_there(name):
        return name
    with _one_at_a_time():
        if not _is_there(name):
            argv = ["useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", name]
            try:
                subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30)
            except (OSError, subprocess.SubprocessError) as error:
                reason = (getattr(error, "stderr", None) or str(error)).strip()
                raise AccountMissing(f"the account {name!r} could not be made ({reason})") from error
    return name


def give(account: str, directories: Iterable[Path]) -> None:
    """Make the account the owner of these directories and of what we put in them. Links are not followed."""
    if not account:
        return
    entry = pwd.getpwnam(account)
    for path in directories:
        with _opened(path) as place:
            for _, names, files, directory in os.fwalk(".", dir_fd=place, follow_symlinks=False):
                os.fchown(directory, entry.pw_uid, entry.pw_gid)
                for name in (*names, *files):
                    if os.stat(name, dir_fd=directory, follow_symlinks=False).st_uid == 0:
                        os.chown(name, entry.pw_uid, entry.pw_gid, dir_fd=directory, follow_symlinks=False)


def show(account: str, directory: Path) -> None:
    """Let the account pass into a directory of ours, and nobody else."""
    directory.chmod(0o710 if account else 0o700)
    if account:
        os.chown(directory, -1, pwd.getpwnam(account).pw_gid)


def open_to(account: str, paths: Iterable[Path]) -> None:
    """Let the account's group read what belongs to us below these paths. Links are not followed, on the way neither."""
    if not account:
        return
    group = pwd.getpwnam(account).pw_gid
    for path in paths:
        with _opened(path.parent) as above:
            if not stat.S_ISDIR(os.stat(path.name, dir_fd=above, follow_symlinks=False).st_mode):
                _open_file(path.name, above, group)
                continue
            for _, _, files, directory in os.fwalk(path.name, dir_fd=above, follow_symlinks=False):
                _open_one(directory, group)
                for name in files:
                    with suppress(FileNotFoundError):  # a trainer gave what it wrote its last name just now
                        _open_file(name, directory, group)


def find_closed(account: str, path: Path, *, at_most: int | None = None) -> Path | None:
    """The first of this path and of what lies in it that the account cannot read, of the first so many at most.

    But for Python's caches: our processes make them for themselves, and who cannot read one reads the source.
    """
    if not account:
        return None
    within = path.rglob("*") if path.is_dir() else ()
    below = (each for each in within if "__pycache__" not in each.parts)
    for each in (path, *islice(below, at_most)):
        try:
            status = each.lstat()
        except FileNotFoundError:
            continue
        wanted = 0o5 if stat.S_ISDIR(status.st_mode) else 0o4
        if not stat.S_ISLNK(status.st_mode) and not _has(account, status, wanted):
            return each
    return None


def find_impassable(account: str, path: Path) -> Path | None:
    """The first directory above this path that the account cannot enter."""
    if not account:
        return None
    return next((each for each in reversed(path.parents) if not _has(account, each.lstat(), 0o1)), None)


def _has(account: str, status: os.stat_result, wanted: int) -> bool:
    """Whether the account, which is in no group but its own, has these bits of read, write and enter."""
    entry = pwd.getpwnam(account)
    shift = 6 if status.st_uid == entry.pw_uid else 3 if status.st_gid == entry.pw_gid else 0
    return status.st_mode >> shift & wanted == wanted


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    descriptor = open_straight(directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_there(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Of two that are made at the same moment under one name, useradd fails one, or gives the name a second number."""
    with open(_LOCK, "a", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o600)) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _open_file(name: str, directory: int, group: int) -> None:
    if stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
        try:
            _open_one(descriptor, group)
        finally:
            os.close(descriptor)


def _open_one(descriptor: int, group: int) -> None:
    status = os.fstat(descriptor)
    wanted = 0o050 if stat.S_ISDIR(status.st_mode) else 0o040
    if status.st_uid != 0 or status.st_mode & 0o004 or (status.st_gid == group and status.st_mode & wanted == wanted):
        return  # the account's own, everybody's, or its group's already
    os.fchown(descriptor, -1, group)
    os.fchmod(descriptor, stat.S_IMODE(status.st_mode) | wanted)
