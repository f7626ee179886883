"""Virtual environments for environments of other libraries, whose packages would contradict ours.

    ROOT/NAME/                     as `python -m venv` makes them
    ROOT/NAME/.rollyard-complete   what was installed, as JSON; written last: without it nothing here is used
    ROOT/.NAME.lock                whoever installs or removes NAME holds it

Of ours a virtual environment has msgspec and a link to this package, so `environments.isolated.host` runs in it and
nothing else of Rollyard is importable. Everyone may read it: code of runs may have an account of its own. Standard
library only.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions, version
from pathlib import Path
from urllib.parse import unquote, urlsplit

from environments.packages import Failed, run
from environments.packages import install as install_packages

DIRECTORY = "envs"
"""In the home of an installation."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}", re.IGNORECASE)
_MARKER = ".rollyard-complete"
_ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar")
"""Ends of names that pip takes for files without a directory in front."""
_NO_SOURCES = re.compile(r"build|dist|(.*/)?(\.[^/]*|__pycache__|[^/]+\.egg-info)")
"""Directories of a package that its building leaves there, and hidden ones, by their paths in it."""
_LAST_LINES = 15
"""Of what a program said that failed."""
_OURS = Path(__file__).resolve().parent
ENTRY_POINT_GROUP = "rollyard.environments"


class VenvError(Exception):
    """A virtual environment cannot be made, found or removed; the message names the fix."""


@dataclass(frozen=True)
class Packages:
    """Packages that are known to work together."""

    packages: tuple[str, ...] = ()
    complete_list: Path | None = None
    """A file of requirements that names every package, so that no other is installed with them."""


RECIPES = {
    "atropos": Packages(complete_list=_OURS / "bridges" / "atropos.txt"),
    "gymnasium": Packages(("gymnasium==1.4.0",)),
    "open_spiel": Packages(("open_spiel==2.0.2",)),
    "openenv": Packages(("openenv-core==0.3.0",)),
    "reasoning_gym": Packages(("reasoning-gym==0.1.25",)),
    "verifiers": Packages(("verifiers==0.4.0",)),
}
"""By the name of the bridge that needs them."""


@dataclass(frozen=True)
class Venv:
    """One that may be there only in part."""

    name: str
    directory: Path
    is_complete: bool
    recipes: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    """As they were asked for."""
    requirements: tuple[str, ...] = ()
    """What pip was told, but for complete lists."""
    python: str = ""
    """Version of the interpreter."""
    sources: str = ""
    """Hash of what lies on this machine of that, as it was then; empty: nothing."""
    environments: tuple[str, ...] = ()
    """Names of those that its packages offer."""


def find(root: Path, name: str) -> Path:
    """Return the interpreter of a virtual environment: one of `root` by name, any other by its absolute directory.

    Raises VenvError.
    """
    if os.path.isabs(name):
        python = Path(name, "bin", "python")
        if not os.access(python, os.X_OK):
            raise VenvError(f"{name} is not the directory of a virtual environment: it has no bin/python")
        return python
    directory = root / _checked(name)
    if not _is_complete(directory):
        state = "is there only in part" if directory.exists() else "does not exist"
        raise VenvError(f"the virtual environment {name} {state}: `rollyard envs install {_words(name)}` makes it")
    return directory / "bin" / "python"


def install(
    root: Path, name: str, packages: Sequence[str] = (), *, recipes: Sequence[str] = (), python: str = sys.executable
) -> bool:
    """Make the virtual environment `name`; False: it is there with the same packages, and nothing was done.

    A name that is a recipe's installs that recipe. `packages` are anything that pip takes; where one is a directory or
    file that has changed since, all is made anew. Blocks, for minutes. Raises VenvError, with the end of what pip said.
    """
    directory = root / _checked(name)
    recipes = tuple(recipes) or ((name,) if name in RECIPES else ())
    _check_order(name, packages, recipes)
    packages = tuple(map(_from_anywhere, packages))
    sources = _hash(packages)
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o755)
    with _held(root, name):
        if _is_complete(directory):
            found = _read(directory)
            if found.requirements != _requirements(packages, recipes):
                raise VenvError(
                    f"{name} is there already, with other packages or versions ({', '.join(found.requirements)}): "
                    f"`rollyard envs remove {name}` first, or choose another name"
                )
            if found.sources == sources:
                return False
        _clear(directory)
        try:
            _make(directory, packages, recipes, python, sources)
        except BaseException:
            _clear(directory)
            raise
    return True


def remove(root: Path, name: str) -> None:
    """Delete one, whole or in part. Runs that use it fail at their next start. Raises VenvError."""
    directory = root / _checked(name)
    if not directory.is_dir():
        raise VenvError(f"there is no virtual environment {name} in {root}")
    with _held(root, name):
        _clear(directory, ignore_errors=False)


def listing(root: Path) -> list[Venv]:
    """Return all of them, by name."""
    directories = sorted(root.iterdir()) if root.is_dir() else []
    return [_read(each) for each in directories if each.is_dir() and _NAME.fullmatch(each.name)]


def offered(*places: str) -> tuple[str, ...]:
    """Names of the environments that packages in these directories offer; by default those of this interpreter."""
    found = distributions(path=list(places)) if places else distributions()
    points = (point for each in found for point in each.entry_points.select(group=ENTRY_POINT_GROUP))
    return tuple(sorted({point.name for point in points}))


def _check_order(name: str, packages: Sequence[str], recipes: Sequence[str]) -> None:
    if unknown := [each for each in recipes if each not in RECIPES]:
        raise VenvError(f"no recipe is named {unknown[0]!r}. Known: {', '.join(RECIPES)}")
    if options := [each for each in packages if each.startswith("-")]:
        raise VenvError(f"{options[0]!r} is an option of pip, not a package: set it in pip's own configuration")
    if not recipes and not packages:
        raise VenvError(f"{name} is not a recipe ({', '.join(RECIPES)}): say which packages to install")


def _from_anywhere(package: str) -> str:
    """A package as pip takes it, wherever that is asked: a relative path is made absolute."""
    place, bracket, extras = package.partition("[")
    return package if "://" in package or _place(package) is None else os.path.abspath(place) + bracket + extras


def _place(package: str) -> Path | None:
    """The directory or file that a package is installed from, as pip tells one by its name; None: it is elsewhere."""
    at = package.find("file://")
    path = Path(package.partition("[")[0] if at < 0 else unquote(urlsplit(package[at:]).path))
    is_place = at >= 0 or os.sep in package or package.startswith(".") or path.name.endswith(_ARCHIVES)
    return path if is_place and path.exists() else None


def _hash(packages: Sequence[str]) -> str:
    """Of all files that packages are installed from here; empty: none is."""
    places = [place for place in map(_place, packages) if place is not None]
    digest = hashlib.sha256()
    try:
        for path in (path for place in places for path in _files(place)):
            digest.update(os.fsencode(path) + b"\0")
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    except OSError as error:
        raise VenvError(f"{error.filename} cannot be read ({error.strerror}): make it readable to you first") from error
    return digest.hexdigest() if places else ""


def _files(place: Path) -> Iterator[Path]:
    """A file, or those of a directory, always in the same order."""
    if place.is_file():
        yield place
    for directory, names, files in os.walk(place):
        inside = {each: os.path.relpath(os.path.join(directory, each), place) for each in sorted(names)}
        names[:] = [each for each, path in inside.items() if not _NO_SOURCES.fullmatch(path)]
        yield from (file for each in sorted(files) if (file := Path(directory, each)).is_file())


def _clear(directory: Path, *, ignore_errors: bool = True) -> None:
    (directory / _MARKER).unlink(missing_ok=True)  # first: what is half gone is not used
    shutil.rmtree(directory, ignore_errors=ignore_errors)


def _make(directory: Path, packages: Sequence[str], recipes: Sequence[str], python: str, sources: str) -> None:
    with _said_of(f"making {directory.name}"):
        run([python, "-m", "venv", str(directory)])
    made = directory / "bin" / "python"
    for recipe in map(RECIPES.__getitem__, recipes):
        if recipe.complete_list:
            with _said_of(f"installing {recipe.complete_list.stem}"):
                install_packages(made, ["--no-deps", "-r", str(recipe.complete_list)])
    requirements = _requirements(packages, recipes)
    with _said_of(f"installing {', '.join(requirements)}"):
        install_packages(made, requirements)
    (_site_packages(directory) / "environments").symlink_to(_OURS)
    kept = {
        "recipes": list(recipes),
        "packages": list(packages),
        "requirements": list(requirements),
        "sources": sources,
        "python": _python_version(directory),
    }
    marker = directory / _MARKER
    marker.write_text(json.dumps(kept))
    marker.chmod(0o644)


def _requirements(packages: Sequence[str], recipes: Sequence[str]) -> tuple[str, ...]:
    known = [package for recipe in recipes for package in RECIPES[recipe].packages]
    # The process over there and the driver here speak the same language only if they mean the same by it.
    return (*known, *packages, f"msgspec=={version('msgspec')}")


@contextlib.contextmanager
def _said_of(doing: str) -> Iterator[None]:
    try:
        yield
    except Failed as error:
        raise VenvError("\n  ".join([f"{doing} failed:", *str(error).splitlines()[-_LAST_LINES:]])) from error


def _read(directory: Path) -> Venv:
    try:
        kept = json.loads((directory / _MARKER).read_text())
        recipes, packages, requirements = (tuple(kept[key]) for key in ("recipes", "packages", "requirements"))
        complete, names = _is_complete(directory), offered(str(_site_packages(directory)))
        python, sources = kept["python"], kept.get("sources", "")
        return Venv(directory.name, directory, complete, recipes, packages, requirements, python, sources, names)
    except (OSError, ValueError, KeyError, TypeError):
        return Venv(directory.name, directory, is_complete=False)


def _is_complete(directory: Path) -> bool:
    """Also whether it is linked to this package: an installation that moved makes its virtual environments anew."""
    if not (directory / _MARKER).is_file():
        return False
    links = list(directory.glob("lib/python3*/site-packages/environments"))
    return any(link.resolve() == _OURS for link in links)


def _site_packages(directory: Path) -> Path:
    [found] = directory.glob("lib/python3*/site-packages")
    return found


def _python_version(directory: Path) -> str:
    lines = (directory / "pyvenv.cfg").read_text().splitlines()
    settings = dict(line.replace(" ", "").partition("=")[::2] for line in lines)
    return settings.get("version", "")


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise VenvError(
            f"{name!r} names no virtual environment: letters, digits, '.', '_' and '-', at most 64; "
            "or an absolute directory"
        )
    return name


def _words(name: str) -> str:
    return name if name in RECIPES else f"{name} PACKAGE ..."


@contextlib.contextmanager
def _held(root: Path, name: str) -> Iterator[None]:
    with open(root / f".{name}.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise VenvError(f"another process installs or removes {name} just now: wait until it is done") from None
        yield
