"""Which files a data set has: what an argument `data` names, and which of them hold a config and a split.

a file            all of it, whatever split is asked for
a directory       laid out as the hub does it: see below
org/name          what the hub's cache has of it; nothing here uses a network

train.jsonl, test.jsonl                             a file per split
data/train-00000-of-00002.parquet, ...              split into shards
main/train-00000-of-00001.parquet, socratic/...     a directory per config
train/algebra/1.json                                splits above configs, a row per file

Where the README of a directory has `configs` that name files, it decides (`declared`).
"""

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from environments.library.data.declared import read_declared

SUFFIXES = (".jsonl", ".json", ".csv", ".jsonl.gz", ".json.gz", ".csv.gz", ".parquet", ".arrow")
EVERY = "*"
"""As a config: all of them together."""

_METADATA = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
_KIN = [{"train", "training"}, {"validation", "valid", "val", "dev"}, {"test", "testing", "eval", "evaluation"}]
"""Words for one split, as the hub reads names of files."""
_SPLIT_WORDS = set[str]().union(*_KIN)
_PREFERRED = ("", "main", "default", "all")
"""Configs that are meant where none is named and there are several, the first that is there."""
_SHARD = re.compile(r"-\d+-of-\d+$")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_MOST_ENTRIES = 100_000
"""Of a directory: a whole disk, named by mistake, must not be walked through."""


class _DataFile(NamedTuple):
    path: Path
    config: str
    split: str
    """As its name says it, such as `train`, `dev` or `auxiliary_train`; empty if it says none."""


class DataFiles:
    """Files of one config of a data set."""

    def __init__(self, data: str, config: str = "", *, otherwise: str = "") -> None:
        """Find them; `otherwise` is the config where none is named. Raises ValueError, which names the fix."""
        self.data = data
        root = _place(data)
        if root.is_file():
            if config not in ("", EVERY):
                raise ValueError(f"config: {data} is a file and has none: leave it out")
            self._files = [_DataFile(root, "", "")]
            return
        if declared := read_declared(root):
            found = [_DataFile(*each) for each in declared.files if each.path.name.endswith(SUFFIXES)]
            otherwise = declared.default or otherwise
        else:
            found = [_described(root, path) for path in _data_files(root)]
        configs = sorted({each.config for each in found})
        chosen = _chosen(data, config, configs, otherwise if otherwise in (*configs, EVERY) else "")
        self._files = [each for each in found if chosen in (EVERY, each.config)]

    @property
    def splits(self) -> list[str]:
        """Names of the splits, sorted; none where no file says which one it belongs to."""
        return sorted({each.split for each in self._files if each.split})

    @property
    def paths(self) -> list[Path]:
        """All of them."""
        return [each.path for each in self._files]

    def of(self, split: str) -> list[Path]:
        """Files of a split: those that say just this, else those that say it in other words; maybe none."""
        exact = [each.path for each in self._files if each.split == split]
        kin = next((words for words in _KIN if split in words), {split})
        return exact or [each.path for each in self._files if kin & _words(each.split)]

    def named(self, split: str, argument: str) -> list[Path]:
        """Files of a split that somebody asked for by `argument`. Raises ValueError if there are none."""
        if found := self.of(split):
            return found
        known = ", ".join(self.splits) or "none that its files are named after, so leave it out"
        raise ValueError(f"{argument}: {self.data} has no split {split!r}; it has {known}")


def hub_cache() -> Path:
    """Where Hugging Face's libraries keep what they fetched for this account."""
    if found := os.environ.get("HF_HUB_CACHE"):
        return Path(found)
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    return Path(home) / "hub"


def _place(data: str) -> Path:
    """The file or directory that is named."""
    place = Path(data)
    if place.is_file() or place.is_dir():
        if place.is_dir() or place.name.endswith(SUFFIXES):
            return place
        raise ValueError(f"data: {data} is none of the files that can be read ({', '.join(SUFFIXES)})")
    if _HUB_NAME.fullmatch(data) and not data.endswith(SUFFIXES):
        return _cached(data)
    raise ValueError(
        f"data: there is no {data} on this machine: put the files there, or name a file, a directory, or a data set of "
        "the hub as org/name"
    )


def _cached(name: str) -> Path:
    """The newest snapshot in the cache. Its directory alone says whether there is one: nothing is asked or imported."""
    folder = hub_cache() / f"datasets--{name.replace('/', '--')}"
    snapshots = {path.name: path for path in folder.glob("snapshots/*") if path.is_dir()}
    try:
        newest = (folder / "refs" / "main").read_text().strip()
    except OSError:
        newest = ""
    if newest in snapshots:
        return snapshots[newest]
    if snapshots:
        return max(snapshots.values(), key=lambda path: path.stat().st_mtime)
    raise ValueError(
        f"data: {name} is not in the hub's cache {hub_cache()}: run `hf download --repo-type dataset {name}` where "
        "there is a network, or put its files into a directory and name that"
    )


def _data_files(root: Path) -> list[Path]:
    entries = list(islice(root.rglob("*"), _MOST_ENTRIES + 1))
    if len(entries) > _MOST_ENTRIES:
        raise ValueError(f"data: {root} holds more than {_MOST_ENTRIES:,} files: name a directory below it")
    found = [
        path
        for path in sorted(entries)
        if path.name.endswith(SUFFIXES) and path.name not in _METADATA and not _is_hidden(path, root) and path.is_file()
    ]
    if not found:
        raise ValueError(f"data: {root} has no data files in it ({', '.join(SUFFIXES)}): put them there")
    return found


def _is_hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def _described(root: Path, path: Path) -> _DataFile:
    *directories, name = path.relative_to(root).parts
    stem = _SHARD.sub("", name.removesuffix(next(end for end in SUFFIXES[::-1] if name.endswith(end))))
    config = next((part for part in directories if _names_config(part, stem)), "")
    return _DataFile(path, config, next(_splits([stem, *directories[::-1]]), ""))


def _splits(parts: list[str]) -> Iterator[str]:
    """What may say the split: a word for one before what only has such a word in it, names before directories."""
    yield from (part for part in parts if part in _SPLIT_WORDS)
    yield from (part for part in parts if _words(part) & _SPLIT_WORDS)


def _names_config(part: str, stem: str) -> bool:
    """`auxiliary_train/race_train.csv` is of a split, `auxiliary_train/train-0.parquet` of a config."""
    names_split = part in _SPLIT_WORDS if stem in _SPLIT_WORDS else bool(_words(part) & _SPLIT_WORDS)
    return part != "data" and not names_split


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z]+", name.lower()))


def _chosen(data: str, config: str, configs: list[str], otherwise: str) -> str:
    named = ", ".join(filter(None, configs))
    if config and config != EVERY and config not in configs:
        raise ValueError(f"config: {data} has no config {config!r}; it has {named or 'none, so leave it out'}")
    if config or otherwise:
        return config or otherwise
    if len(configs) == 1:
        return configs[0]
    for preferred in _PREFERRED:
        if preferred in configs:
            return preferred
    raise ValueError(f"config: {data} has several: set it to one of {named}, or to {EVERY} for all of them")
