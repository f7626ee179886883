"""Where the sockets of this process lie: named after it, so that those of one that was killed are taken away."""

import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

_PREFIX = "rollyard-driver-"


def make_directory() -> tempfile.TemporaryDirectory[str]:
    """A directory that every account may enter, for a socket which asks for a key. Its owner cleans it up."""
    _sweep()
    made = tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-", ignore_cleanup_errors=True)
    os.chmod(made.name, 0o755)
    return made


def _sweep() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        named = re.fullmatch(rf"{_PREFIX}(\d+)-\w+", path.name)
        with suppress(FileNotFoundError):
            if named and path.lstat().st_uid == os.geteuid() and not psutil.pid_exists(int(named[1])):
                shutil.rmtree(path, ignore_errors=True)
