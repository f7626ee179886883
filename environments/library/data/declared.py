"""Which files belong to which config and split, where the README of a data set says so.

    ---
    configs:
    - config_name: main
      default: true
      data_files:
      - split: train
        path: data/train-*
    ---

`data_files` may as well be one pattern, or a list of them: then all is `train`, as the hub has it.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

_LONGEST = 2**20
"""Bytes of a README that are read."""
_MARK = "---"


class DeclaredFile(NamedTuple):
    """A file, and what the README says of it."""

    path: Path
    config: str
    split: str


class Declared(NamedTuple):
    """All that the README says."""

    files: list[DeclaredFile]
    default: str
    """Config that is meant where none is named; empty: it does not say."""


def read_declared(root: Path) -> Declared | None:
    """What the README in a directory declares; None: nothing. Raises ValueError for what cannot be read."""
    configs = _configs(root / "README.md")
    if not configs:
        return None
    found, default = [], ""
    for config in configs:
        name = str(config.get("config_name") or "default")
        default = name if config.get("default") is True else default
        below = _inside(str(config.get("data_dir") or "."))
        for split, pattern in _patterns(config.get("data_files")):
            inside = below / _inside(pattern)
            try:
                matching = sorted(root.glob(f"{inside}"))
            except ValueError as error:
                raise ValueError(f"{root / 'README.md'} names {pattern!r}: {error}") from None
            found += [DeclaredFile(path, name, split) for path in matching]
    return Declared([each for each in found if not each.path.is_dir()], default) if found else None


def _configs(readme: Path) -> list[dict[str, Any]]:
    """Those that name files."""
    import yaml

    try:
        with readme.open(encoding="utf-8", errors="replace") as file:
            text = file.read(_LONGEST)
    except OSError:
        return []
    head = text.partition(f"{_MARK}\n")[2].partition(f"\n{_MARK}")[0] if text.startswith(_MARK) else ""
    try:
        told = yaml.safe_load(head)
    except (yaml.YAMLError, RecursionError):  # a rule above some words: it declares nothing
        return []
    configs = told.get("configs") if isinstance(told, dict) else None
    return [each for each in configs or [] if isinstance(each, dict) and each.get("data_files")]


def _patterns(told: Any) -> Iterator[tuple[str, str]]:
    for each in told if isinstance(told, list) else [told]:
        if isinstance(each, dict):
            paths = each.get("path")
            yield from ((str(each.get("split") or "train"), str(path)) for path in _listed(paths))
        else:
            yield "train", str(each)


def _listed(told: Any) -> list[Any]:
    return told if isinstance(told, list) else [told]


def _inside(pattern: str) -> PurePosixPath:
    """A pattern that leads nowhere else. Raises ValueError."""
    path = PurePosixPath(pattern)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"the README names {pattern!r}, which lies outside of the data set")
    return path
