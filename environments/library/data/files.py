"""Which files a data set has: what an argument `data` names, and which of them hold a config and a split.

a file            all of it, whatever split is asked for
a directory       laid out as the hub does it: see `layouts`
org/name          what the hub's cache has of it; nothing here uses a network
"""

import os
import re
from pathlib import Path

from environments.errors import InvalidArguments
from environments.library.data.layouts import DataFile, of_split, read_layout

SUFFIXES = (".jsonl", ".json", ".csv", ".jsonl.gz", ".json.gz", ".csv.gz", ".parquet", ".arrow")
EVERY = "*"
"""As a config: all of them together."""

_EVAL_SPLITS = ("test", "validation")
_PREFERRED = ("", "main", "default", "all")
"""Configs that are meant where none is named and there are several, the first that is there."""
_MOST_FILES = 100_000
"""Of a directory: a whole disk, named by mistake, must not be walked through."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


class DataFiles:
    """Files of one config of a data set."""

    def __init__(self, data: str, config: str = "", *, otherwise: str = "") -> None:
        """Find them; `otherwise` is the config where none is named. Raises ValueError, which names the fix."""
        self.data = data
        root = _place(data)
        if root.is_file():
            if config not in ("", EVERY):
                raise ValueError(f"config: {data} is a file and has none: leave it out")
            self._files = [DataFile(root, "", "")]
            return
        try:
            layout = read_layout(root, SUFFIXES, most=_MOST_FILES)
        except ValueError as error:
            raise ValueError(f"data: {error}") from None
        otherwise = layout.default or otherwise
        configs = sorted({each.config for each in layout.files})
        chosen = _chosen(data, config, configs, otherwise if otherwise in (*configs, EVERY) else "")
        self._files = [each for each in layout.files if chosen in (EVERY, each.config)]

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
        return [each.path for each in of_split(self._files, split)]

    def named(self, split: str, argument: str) -> list[Path]:
        """Files of a split that somebody asked for by `argument`. Raises ValueError if there are none."""
        if found := self.of(split):
            return found
        known = ", ".join(self.splits) or "none that its files are named after, so leave it out"
        raise ValueError(f"{argument}: {self.data} has no split {split!r}; it has {known}")

    def sources(self, train_split: str = "", eval_split: str = "") -> tuple[list[Path], list[Path]]:
        """Files to train on and files that are held out, maybe none; the same ones where they are to be divided.

        Raises ValueError for a split that is named and not there.
        """
        train = self.named(train_split, "train_split") if train_split else self.of("train")
        if eval_split:
            return train, self.named(eval_split, "eval_split")
        if not self.splits:
            return self.paths, self.paths
        return train, next(filter(None, map(self.of, _EVAL_SPLITS)), train)

    def nothing_to_train_on(self, fix: str) -> InvalidArguments:
        """What to raise where a problem to train on is asked for; `fix`: what else to do than to evaluate."""
        only = ", ".join(self.splits) or "what is held out"
        return InvalidArguments(f"data: {self.data} has nothing to train on, only {only}: evaluate on it, or {fix}")


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
