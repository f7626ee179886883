"""Places of a machine that no run is shown, whoever names them: the system's, everybody's, hidden ones; and those that
every run is shown.

Standard library only: what starts a replica imports it.
"""

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

SYSTEM = Path("/usr")
"""Programs and libraries, which every sandbox shows."""

_CLOSED = tuple(Path(each) for each in ("/boot", "/dev", "/etc", "/proc", "/run", "/sys", "/var/run"))
"""A read-only bind keeps nobody from connecting to a socket in it."""
_SHARED = tuple(Path(each) for each in ("/home", "/mnt", "/srv", "/tmp", "/usr", "/var", "/var/lib", "/var/tmp"))
_HUB_FOLDERS = ("models--", "datasets--")
"""Beginnings of names in the hub's cache, of which each holds one model or data set."""


def reserved(place: Path) -> str:
    """Why a place outside of the installation, without links on the way, is shown to no run; "" when nothing speaks
    against it. Raises OSError where it cannot be looked at."""
    if any(place.is_relative_to(each) for each in _CLOSED):
        return f"{place} belongs to the system."
    if place in _SHARED or Path.home().is_relative_to(place):
        return f"{place} holds everybody's files: name the directory that is meant."
    hidden = next((part for part in place.parts if part.startswith(".")), "")
    if hidden and not any(part.startswith(_HUB_FOLDERS) for part in place.parts):
        return f"{place} lies in {hidden}, and hidden directories hold keys and sockets: copy it elsewhere."
    if place.exists() and not place.is_dir() and not place.is_file():
        return f"{place} is neither a file nor a directory."
    return ""


def programs() -> Iterator[Path]:
    """What every sandbox shows besides `SYSTEM`: interpreter, installed packages and ours."""
    yield Path(sys.prefix)
    yield Path(sys.base_prefix)
    yield Path(os.path.realpath(sys.executable)).parent.parent
    yield Path(sysconfig.get_paths()["purelib"])
    ours = Path(__file__).resolve().parents[1]
    yield from (ours / name for name in ("environments", "trainers"))
