"""Places of a machine that no run is shown, whoever names them: the system's, everybody's, hidden ones.

Standard library only: what starts a replica imports it.
"""

from pathlib import Path

_SYSTEM = tuple(Path(each) for each in ("/boot", "/dev", "/etc", "/proc", "/run", "/sys", "/var/run"))
"""A read-only bind keeps nobody from connecting to a socket in it."""
_SHARED = tuple(Path(each) for each in ("/home", "/mnt", "/srv", "/tmp", "/usr", "/var", "/var/lib", "/var/tmp"))
_HUB_FOLDERS = ("models--", "datasets--")
"""Beginnings of names in the hub's cache, of which each holds one model or data set."""


def reserved(place: Path) -> str:
    """Why a place outside of the installation, without links on the way, is shown to no run; "" when nothing speaks
    against it. Raises OSError where it cannot be looked at."""
    if any(place.is_relative_to(each) for each in _SYSTEM):
        return f"{place} belongs to the system."
    if place in _SHARED or Path.home().is_relative_to(place):
        return f"{place} holds everybody's files: name the directory that is meant."
    hidden = next((part for part in place.parts if part.startswith(".")), "")
    if hidden and not any(part.startswith(_HUB_FOLDERS) for part in place.parts):
        return f"{place} lies in {hidden}, and hidden directories hold keys and sockets: copy it elsewhere."
    if place.exists() and not place.is_dir() and not place.is_file():
        return f"{place} is neither a file nor a directory."
    return ""
