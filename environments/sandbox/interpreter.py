"""A Python that is shown to confined programs: which directories it consists of. Standard library only."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from environments.sandbox.program import SandboxUnavailable

_PARTS = ("bin", "lib", "lib64")
"""Of an installation. Not all of its directory, which may be somebody's home."""
_EVERYWHERE = Path("/usr")


class Interpreter(NamedTuple):
    """What to put on PATH, and what to show besides /usr."""

    programs: Path
    shown: tuple[Path, ...]


def find(python: str = "") -> Interpreter:
    """Find out about an interpreter, or one of a virtual environment's directory; "": the one that runs this.

    Raises SandboxUnavailable.
    """
    named = Path(python or sys.executable or "/usr/bin/python3")
    executable = named / "bin" / "python3" if named.is_dir() else named
    if not executable.exists():
        raise SandboxUnavailable(f"{executable} is no Python: name an interpreter or a virtual environment")
    prefix = _directory(executable).parent
    venv = [prefix] if (prefix / "pyvenv.cfg").is_file() else []
    shown = [*venv, *_installation(executable)]
    return Interpreter(_directory(executable), tuple(dict.fromkeys(each for each in shown if not _is_in_usr(each))))


def _installation(executable: Path) -> Iterator[Path]:
    """Of each Python on the way along the links, down to the real one."""
    while True:
        directory = _directory(executable)
        if not (directory.parent / "pyvenv.cfg").is_file():
            yield from (each for name in _PARTS if (each := directory.parent / name).is_dir())
        if not executable.is_symlink():
            return
        executable = Path(os.path.normpath(directory / os.readlink(executable)))


def _directory(executable: Path) -> Path:
    """With /bin as the /usr/bin that it is on most systems."""
    parent = executable.parent.absolute()
    return parent.resolve() if _is_in_usr(parent.resolve()) else parent


def _is_in_usr(path: Path) -> bool:
    return path.is_relative_to(_EVERYWHERE)
