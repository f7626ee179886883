"""Files into the directory of a confined program, and out of it again. Standard library only.

Both while none of its code runs: before it begins, and when everything of it is dead. So nothing can be exchanged
between a look and a use; links that it left are not followed.
"""

import errno
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from environments.disk import open_regular
from environments.sandbox.owner import Owner


def fill(directory: int, files: Mapping[str, bytes], owner: Owner) -> None:
    """Write files into an open directory, and give all of it to the program's account. Raises OSError."""
    _give(directory, owner)
    for name, content in files.items():
        with _Parent(directory, name, owner) as parent:
            mode = 0o755 if content.startswith(b"#!") else 0o644
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with open(os.open(parent.last, flags, mode, dir_fd=parent.descriptor), "wb") as file:
                file.write(content)
                os.fchmod(file.fileno(), mode)
                _give(file.fileno(), owner)


def collect(directory: int, names: Iterable[str], most_bytes: int) -> tuple[dict[str, bytes], dict[str, str]]:
    """Read files out of an open directory: content by name, and why the others cannot be had."""
    found: dict[str, bytes] = {}
    missing: dict[str, str] = {}
    left = most_bytes
    for name in names:
        try:
            with _Parent(directory, name) as parent, open_regular(Path(parent.last), at=parent.descriptor) as file:
                content = file.read(left + 1)
            if len(content) > left:
                raise OSError(errno.EFBIG, f"more than the {most_bytes} bytes that all files may have together")
        except OSError as error:
            behind = error.errno in (errno.ELOOP, errno.ENOTDIR)
            missing[name] = "lies behind a link or a file" if behind else str(error.strerror)
        else:
            found[name] = content
            left -= len(content)
    return found, missing


class _Parent:
    """The directory that a name is in, walked to without following a link; made on the way where there is an owner."""

    def __init__(self, directory: int, name: str, owner: Owner | None = None) -> None:
        *above, self.last = name.split("/")
        self.descriptor = os.dup(directory)
        try:
            for part in above:
                self._enter(part, owner)
        except OSError:
            os.close(self.descriptor)
            raise

    def _enter(self, part: str, owner: Owner | None) -> None:
        made = False
        if owner is not None:
            try:
                os.mkdir(part, 0o755, dir_fd=self.descriptor)
                made = True
            except FileExistsError:
                pass
        entered = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=self.descriptor)
        os.close(self.descriptor)
        self.descriptor = entered
        if owner is not None and made:
            _give(entered, owner)

    def __enter__(self) -> "_Parent":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)


def _give(descriptor: int, owner: Owner) -> None:
    if os.geteuid() == 0:
        os.fchown(descriptor, owner.uid, owner.gid)
