"""Which config and which split the files of a directory hold, as its README or their names say it.

train.jsonl, test.jsonl                             a file per split
data/train-00000-of-00002.parquet, ...              split into shards
main/train-00000-of-00001.parquet, socratic/...     a directory per config
train/algebra/1.json                                splits above configs, a row per file

Where the README of a directory has `configs` that name files, it decides (`declared`). Environments choose their files
by this (`files`), and supervised runs do (`trainers.data.sources`).
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import NamedTuple

from environments.library.data.declared import read_declared

_METADATA = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
_KIN = [{"train", "training"}, {"validation", "valid", "val", "dev"}, {"test", "testing", "eval", "evaluation"}]
"""Words for one split, as the hub reads names of files."""
_SPLIT_WORDS = set[str]().union(*_KIN)
_SHARD = re.compile(r"[-_.]\d+[-_]of[-_]\d+(-[0-9a-f]{16})?$")
"""`-00000-of-00003`; older versions of `datasets` wrote a hash behind it."""
_COUNT = r"(?:part|shard|chunk)?[-_. ]?\d+"
_BEHIND_WORD = "|".join(f"(?<={word})" for word in sorted(_SPLIT_WORDS))
_NUMBER = re.compile(rf"^{_COUNT}[-_. ]+(?!\d)|(?:(?<!\d)[-_. ]+{_COUNT}|(?:{_BEHIND_WORD})\d+)$")
"""Of `train_1`, `train-part2`, `train3` and `00001-train`; not of `train-v1.1`, which may be another version."""


class DataFile(NamedTuple):
    """A file, and what is known of it."""

    path: Path
    config: str
    split: str
    """As its name says it, such as `train`, `dev` or `auxiliary_train`; empty if it says none."""
    stem: str = ""
    directories: tuple[str, ...] = ()
    """Where it lies below the directory, from the outside in; empty where a README says what it is."""

    @property
    def group(self) -> str:
        """What tells it from files with the same split: its config in a README, else the directories above its split.

        Those below its split are parts of it: `train/algebra/1.json` and `train/geometry/1.json` are one.
        """
        if not self.directories:
            return self.config
        kin = _kin(self.split) | _kin(self.bare(self.split))
        above = takewhile(lambda name: name.lower() not in kin, self.directories)
        return "/".join(name for name in above if name != "data")

    @property
    def names(self) -> tuple[str, ...]:
        """What may be the name of its split, the likeliest first."""
        return (self.split,) if self.split else (self.stem, *self.directories[::-1])

    def bare(self, name: str) -> str:
        """A name of its split without a number that counts files; those in a README count none."""
        return _bare(name) if self.stem else name


class Layout(NamedTuple):
    """What is in a directory."""

    files: list[DataFile]
    is_declared: bool
    """Whether its README says which files are which."""
    default: str
    """Config that the README means where none is named; empty: it does not say."""


def read_layout(root: Path, suffixes: Sequence[str], *, most: int | None = None) -> Layout:
    """The data files below a directory, in order. Raises ValueError, which says what is wrong and the fix: also where
    it holds more than `most` files, of whatever kind."""
    declared = read_declared(root)
    files = [DataFile(*each) for each in declared.files if each.path.name.endswith(tuple(suffixes))] if declared else []
    if declared and files:
        return Layout(list(dict.fromkeys(files)), True, declared.default)  # patterns may overlap
    return Layout([_described(root, path, suffixes) for path in _data_files(root, suffixes, most)], False, "")


def of_split(files: Sequence[DataFile], split: str, *, numbered: bool = False) -> list[DataFile]:
    """Files that say just this split, else those that say it with a number, else in other words or among others; maybe
    none. With `numbered` the first two together: `test_500` beside `test` may be more of it, and may be a part.

    Each has as `split` the name that says it.
    """
    kin = _kin(split)
    just = [] if numbered else _saying(files, lambda _, name: name == split)
    just = just or _saying(files, lambda file, name: split in (name, file.bare(name)))
    return just or _saying(files, lambda _, name: bool(kin & _words(name)))


def _saying(files: Sequence[DataFile], says: Callable[[DataFile, str], bool]) -> list[DataFile]:
    named = ((file, next((name for name in file.names if says(file, name)), None)) for file in files)
    return [file._replace(split=name) for file, name in named if name is not None]


def _data_files(root: Path, suffixes: Sequence[str], most: int | None) -> list[Path]:
    entries = list(islice(root.rglob("*"), None if most is None else most + 1))
    if most is not None and len(entries) > most:
        raise ValueError(f"{root} holds more than {most:,} files: name a directory below it")
    found = [
        path
        for path in sorted(entries)
        if path.name.endswith(tuple(suffixes))
        and path.name not in _METADATA
        and not _is_hidden(path, root)
        and (path.is_file() or not path.exists())  # a link to nothing is refused by who reads it, not left out
    ]
    if not found:
        raise ValueError(f"{root} has no data files in it ({', '.join(suffixes)}): put them there")
    return found


def _is_hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def _described(root: Path, path: Path, suffixes: Sequence[str]) -> DataFile:
    *directories, name = path.relative_to(root).parts
    stem = _SHARD.sub("", name.removesuffix(next(end for end in suffixes if name.endswith(end))))
    config = next((part for part in directories if _names_config(part, stem)), "")
    split = next(_splits([stem, *directories[::-1]]), "")
    return DataFile(path, config, split, stem, tuple(directories))


def _splits(parts: list[str]) -> Iterator[str]:
    """What may say the split: a word for one before what only has such a word in it, names before directories."""
    yield from (part for part in parts if _bare(part) in _SPLIT_WORDS)
    yield from (part for part in parts if _words(part) & _SPLIT_WORDS)


def _bare(name: str) -> str:
    return _NUMBER.sub("", name)


def _names_config(part: str, stem: str) -> bool:
    """`auxiliary_train/race_train.csv` is of a split, `auxiliary_train/train-0.parquet` of a config."""
    names_split = part in _SPLIT_WORDS if stem in _SPLIT_WORDS else bool(_words(part) & _SPLIT_WORDS)
    return part != "data" and not names_split


def _kin(split: str) -> set[str]:
    return next((words for words in _KIN if split.lower() in words), {split.lower()})


def _words(name: str) -> set[str]:
    """Words in a name, also such as have digits in them."""
    return {word for pattern in (r"[^a-z]+", r"[^a-z0-9]+") for word in re.split(pattern, name.lower())}
