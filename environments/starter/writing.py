"""Writes the package of a new environment: a copy of `my_environment`, under another name."""

import keyword
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from environments import registry

TEMPLATE = Path(__file__).with_name("my_environment")
_NAME = re.compile(r"[a-z][a-z0-9_]{1,39}")
_PLACEHOLDERS = ("my_environment", "MyEnvironment")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc")
_MARKERS = ("__init__.py", "tests/__init__.py")
"""Of the template's directories, which are packages of ours and not of the copy."""


class StarterError(Exception):
    """There can be no such package; the message names the fix."""


def write(name: str, into: Path) -> Path:
    """Write the package `name` into a directory that is not there yet, `into`/`name`. Raises StarterError."""
    _check(name)
    target = into / name
    if target.exists() or target.is_symlink():
        raise StarterError(f"{target} is there already: choose another name, or another place with --into")
    class_name = "".join(part.capitalize() for part in name.split("_"))
    try:
        into.mkdir(parents=True, exist_ok=True)
        shutil.copytree(TEMPLATE, target, ignore=_LEFT_OUT)
        for marker in _MARKERS:
            (target / marker).unlink()
        for path in sorted(target.rglob(f"*{_PLACEHOLDERS[0]}*"), reverse=True):
            path.rename(path.with_name(path.name.replace(_PLACEHOLDERS[0], name)))
        for path in filter(Path.is_file, target.rglob("*")):
            text = path.read_text(encoding="utf-8")
            for placeholder, given in zip(_PLACEHOLDERS, (name, class_name), strict=True):
                text = text.replace(placeholder, given)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StarterError(f"{target} cannot be written: {error.strerror}") from error
    return target


def _check(name: str) -> None:
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name.endswith("_"):
        raise StarterError(
            f"{name!r} names no package: 2 to 40 small letters, digits and '_', a letter first, and no word of Python's"
        )
    if name in registry.names():
        raise StarterError(f"an environment is called {name} already: choose another name")
    if name in sys.stdlib_module_names or find_spec(name) is not None:
        raise StarterError(f"a package that is installed here is called {name}: choose another name")
