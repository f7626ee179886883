"""Files and directories that are complete or absent, whatever is killed when, and whenever the power fails.

    write   name.<random>.partial -> fsync -> rename -> fsync of the directory
    remove  rename to name.deleting -> delete what is in it

Standard library only: what starts a replica imports it.
"""

import errno
import io
import os
import shutil
import stat
import subprocess
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

PARTIAL = ".partial"
"""End of the name of a file that is being written. One that is left belongs to a process that died."""
DELETING = ".deleting"
"""End of the name of a directory that is being deleted."""


@contextmanager
def writing(path: Path, *, mode: int = 0o666, replace: bool = True) -> Iterator[BinaryIO]:
    """A new file that takes its name, with its bytes on the disk, when the block ends; an error leaves nothing.

    `mode` is cut by the umask. Without `replace` a file that is there by then stays: of several writers one wins.
    """
    # No number of a process: one on another machine that shares the disk may have it too.
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}{PARTIAL}")
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if replace:
            partial.rename(path)
        elif not path.exists():
            try:
                os.link(partial, path)
            except FileExistsError:  # since we looked
                pass
        sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_file(path: Path, content: bytes, *, mode: int = 0o666, replace: bool = True) -> None:
    """Write a small file as `writing` does."""
    with writing(path, mode=mode, replace=replace) as file:
        file.write(content)


def read_regular(path: Path, limit: int) -> bytes:
    """Up to `limit` bytes of a file that somebody wrote whom we do not trust: no link is followed, no pipe waited for.

    Raises OSError, also for what is no regular file.
    """
    with open_regular(path) as file:
        return file.read(limit)


def open_regular(path: Path, *, at: int | None = None, follow_links: bool = False) -> io.BufferedReader:
    """Open a file that somebody wrote whom we do not trust, as `read_regular` does.

    `at`: an open directory, of which the name of `path` is then taken. With `follow_links` a link to a regular file
    passes, where no run may write.
    """
    flags = os.O_PATH | (0 if follow_links else os.O_NOFOLLOW)
    try:
        # Looked at before it is opened: to open some devices is to use them.
        found = os.open(path if at is None else path.name, flags, dir_fd=at)
        try:
            if not stat.S_ISREG(os.fstat(found).st_mode):
                raise OSError(errno.EINVAL, "is no regular file")
            # Not blocking: who owns a file may hold it against readers for a while.
            return open(os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK), "rb")
        finally:
            os.close(found)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


class ForeignDirectory:
    """A directory that somebody wrote whom we do not trust; it stays the same one whatever becomes of its name.

    Links are followed, as people share files by them, but none in `closed`, where runs write, nor on the way there. No
    more than `most` names are read. Raises OSError, with the path.
    """

    def __init__(self, path: Path, *, closed: Iterable[Path], most: int) -> None:
        self.path = path
        forms = [form for place in closed for form in (place.absolute(), place.resolve())]
        inside = next((form for form in forms if path.is_relative_to(form)), None)
        self._follows_links = inside is None
        try:
            if forms and (fault := detour(path, forms)):
                raise OSError(errno.ELOOP, fault)
            real = path if inside is None else inside.resolve() / path.relative_to(inside)
            self._descriptor = os.open(real, os.O_PATH) if inside is None else open_straight(real)
            try:
                with os.scandir(f"/proc/self/fd/{self._descriptor}") as entries:
                    self.names = {entry.name for entry in islice(entries, most + 1)}
                if len(self.names) > most:
                    raise OSError(errno.E2BIG, f"holds more than {most} files")
            except OSError:
                self.close()
                raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let it go."""
        os.close(self._descriptor)

    def open(self, name: str) -> io.BufferedReader:
        """A regular file in it."""
        return open_regular(self.path / name, at=self._descriptor, follow_links=self._follows_links)

    def size_bytes(self, name: str) -> int:
        """Of a regular file in it."""
        with self.open(name) as file:
            return os.fstat(file.fileno()).st_size

    def read(self, name: str, limit: int) -> bytes:
        """All of a regular file in it, which may have so many bytes."""
        with self.open(name) as file:
            if os.fstat(file.fileno()).st_size > limit:
                raise OSError(errno.EFBIG, f"has more than {limit} bytes", str(self.path / name))
            return file.read(limit)


def detour(path: Path, roots: Iterable[Path]) -> str:
    """What is wrong with the way to `path` below these directories, where others write; "" for a straight one.

    Below a root no component may be a link, and from outside none may lead into a root: whoever made the link can turn
    it elsewhere after somebody looked at it.
    """
    if not path.is_absolute() or ".." in path.parts:
        return f"{path} is relative: write the absolute path, without .."
    roots = [form for root in roots for form in (root.absolute(), root.resolve())]
    inside = next((root for root in roots if path.is_relative_to(root)), None)
    if inside is not None:
        below = [path, *path.parents]
        link = next((each for each in below[: below.index(inside)] if each.is_symlink()), None)
        return f"{link} is a link, and none is followed there" if link else ""
    real = path.resolve()
    if any(real.is_relative_to(root) for root in roots):
        return f"{path} is a way around: it leads to {real}, which has to be named itself"
    return ""


def open_straight(path: Path) -> int:
    """A descriptor that says where an absolute path leads if no component of it is a link, for mounting or `dir_fd`.

    What was looked at may have been exchanged since; this cannot be sent elsewhere. Opens nothing for reading. Raises
    OSError, for a link too.
    """
    descriptor = os.open("/", os.O_PATH | os.O_DIRECTORY)
    for part in path.parts[1:]:
        above = descriptor
        try:
            descriptor = os.open(part, os.O_PATH | os.O_NOFOLLOW, dir_fd=above)
        finally:
            os.close(above)
        if stat.S_ISLNK(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.ELOOP, "is a link, or behind one", str(path))
    return descriptor


def make_directory(path: Path) -> None:
    """Make a directory and those above it, so that they are still there after the power failed."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)


def remove_directory(path: Path) -> None:
    """Delete a directory, if there is one. Its name changes first: a half deleted one never passes for a whole one."""
    if not path.exists():
        return
    doomed = path
    if not path.name.endswith(DELETING):
        doomed = path.with_name(f"{path.name}{DELETING}")
        shutil.rmtree(doomed, ignore_errors=True)
        path.rename(doomed)
    shutil.rmtree(doomed)


def clear_away(path: Path) -> None:
    """Delete a directory with whatever a program that we do not trust has left in it; what resists stays."""
    # Not shutil's, which a directory that is deep enough breaks.
    subprocess.run(["rm", "-rf", "--", path], stderr=subprocess.DEVNULL, check=False)
    if path.exists():
        subprocess.run(["chmod", "-R", "u+rwX", "--", path], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["rm", "-rf", "--", path], stderr=subprocess.DEVNULL, check=False)


def sync(path: Path) -> None:
    """Bring a file or the entries of a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
