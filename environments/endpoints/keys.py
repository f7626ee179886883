"""Keys by reference: `env:NAME` is a variable of the process that asks, `file:NAME` a file in the home's `secrets/`.

A key is read when it is needed and kept nowhere. The name of a variable has to end as names of secrets do: what such an
end has reaches no sandbox (`workers/launchers/confinement.py`).
"""

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from environments.disk import read_regular

DIRECTORY = "secrets"
REFERENCE = r"^(env:[A-Z][A-Z0-9_]*(_KEY|_TOKEN)|file:[a-z0-9][a-z0-9._-]*)?$"
MAX_REFERENCE = 100
_MAX_KEY = 8_192
_OURS = re.compile(r"env:(ROLLYARD_SECRET|DJANGO_SECRET|DATABASE|REDIS)\w*")
_KEY = re.compile(r"[!-~]+")


class KeyMissing(Exception):
    """The key that an endpoint names is not there, or cannot be one; the message has its name and the fix."""


def fault_of(reference: str) -> str:
    """What is wrong with a reference, and how to mend it; empty: nothing."""
    if len(reference) > MAX_REFERENCE or not re.fullmatch(REFERENCE, reference):
        return (
            "must be env:NAME, a variable whose name ends in _KEY or _TOKEN, or file:NAME, a file in the home's "
            f"{DIRECTORY}/ directory; never the key itself"
        )
    if _OURS.fullmatch(reference):
        return "names a secret of this installation, which nobody else is to be told"
    return ""


def variables(references: Iterable[str]) -> list[str]:
    """The variables among what keys are named by."""
    return [name for kind, _, name in (each.partition(":") for each in references) if kind == "env"]


def read(reference: str, home: Path) -> str:
    """The key behind a reference, empty for an empty one. Raises KeyMissing, which never has the key."""
    kind, _, name = reference.partition(":")
    if not reference:
        return ""
    if kind == "env":
        key = os.environ.get(name, "").strip()
        if not key:
            raise KeyMissing(f"The variable {name} is not set: set it where `rollyard up` is started, and start again.")
        return _checked(key, f"The variable {name}")
    path = home / DIRECTORY / name
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise KeyMissing(f"{path} must be a file of ours that nobody else may read: chmod 600.")
        return _checked(read_regular(path, _MAX_KEY + 1).decode(errors="replace").strip(), str(path))
    except OSError as error:
        raise KeyMissing(f"{path} cannot be read ({error.strerror}): write the key there, with mode 0600.") from None


def _checked(key: str, where: str) -> str:
    if len(key) > _MAX_KEY or not _KEY.fullmatch(key):
        raise KeyMissing(f"{where} holds no key: it must be visible ASCII characters without spaces.")
    return key
