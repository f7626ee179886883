"""The code of an environment as text, found without running any of it: its module, and what that imports beside it.

Whoever changes what a problem means raises the version; what changed without, the code says.
"""

import ast
import hashlib
import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path

from environments import registry
from environments.disk import open_regular, open_straight

MOST_FILES = 100
MOST_BYTES = 1_000_000
"""Of all files together; of an environment with more, nothing is said."""


def read(name: str) -> dict[str, str]:
    """Path below its top package -> text, sorted; empty where its code is not found here, or is too much of it.

    What it imports from elsewhere than its own directory is left out: that of Rollyard has a version of its own. A name
    that is a place in a virtual environment (`module:Class`) is not looked for here: whoever launches chooses it, and a
    module of that name in our own path is another. The top package may be a link, but none below it is followed: its
    author would see what this process may read.
    """
    place = registry.places().get(name)
    file = None if place is None else _file_of(place.partition(":")[0])
    if file is None:
        return {}
    root, own = file
    top = root.joinpath(*own.relative_to(root).parts[:-1][:1])
    real = top.resolve()
    found: dict[str, str] = {}
    size, waiting = 0, [own]
    while waiting:
        path = waiting.pop()
        key = str(path.relative_to(root))
        if key in found:
            continue
        try:
            text = _text(real / path.relative_to(top))
        except (OSError, UnicodeDecodeError):
            return {}
        size += len(text)
        if size > MOST_BYTES or len(found) >= MOST_FILES:
            return {}
        found[key] = text
        waiting += _imported(text, path, root=root, within=own.parent)
    return dict(sorted(found.items()))


def digest(files: Mapping[str, str]) -> str:
    """SHA-256 of the files with their names, as hex."""
    said = hashlib.sha256()
    for path, text in sorted(files.items()):
        said.update(f"{path}\0{len(text.encode())}\0{text}".encode())
    return said.hexdigest()


def _text(path: Path) -> str:
    """Of a file that no link leads to, as much as shows that it is too large. Raises OSError, UnicodeDecodeError."""
    directory = open_straight(path.parent)
    try:
        with TextIOWrapper(open_regular(path, at=directory), encoding="utf-8") as file:
            return file.read(MOST_BYTES + 1)
    finally:
        os.close(directory)


def _file_of(module: str) -> tuple[Path, Path] | None:
    """(directory above the top package, file). Of names with dots only the first part is looked up: the rest would
    run the packages above it."""
    top, *rest = module.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin)
    if not rest:
        root = origin.parent.parent if spec.submodule_search_locations else origin.parent
        return (root, origin) if origin.suffix == ".py" else None
    if not spec.submodule_search_locations:
        return None
    for place in map(Path, spec.submodule_search_locations):
        if (found := _module(place.joinpath(*rest))) is not None:
            return place.parent, found
    return None


def _module(path: Path) -> Path | None:
    candidates = (path.with_name(f"{path.name}.py"), path / "__init__.py")
    try:
        return next((each for each in candidates if each.is_file()), None)
    except (OSError, ValueError):  # a name that no file could have
        return None


def _imported(text: str, path: Path, *, root: Path, within: Path) -> Iterator[Path]:
    """Files below a directory that a module imports, whether its statements would run or not."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        names: list[list[str]] = []
        base = root
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = node.module.split(".") if node.module else []
            if node.level > len(path.parents):
                continue
            if node.level:
                base = path.parents[node.level - 1]
            names = [start, *([*start, alias.name] for alias in node.names)]
        for parts in names:
            found = _module(base.joinpath(*parts)) if parts else None
            if found is not None and found.is_relative_to(within):
                yield found
