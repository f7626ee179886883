"""Where examples come from: what `data.path` names, as the files behind it, and each file as lines of JSON.

    file                     itself
    directory                the files of one split, as its README or their names say it, in the order of their names
    directory that Hugging Face's `datasets` saved      the Arrow files that its state.json names
    dataset:NAME@3           what the control plane wrote of that version before the trainer started
    anything else            a data set of the hub: downloaded once, then a directory, for a run always the same

Files are JSONL (also gzipped, as `rollyard export-sft` writes them), Parquet or Arrow. Rows of the latter two become
lines of JSON, in constant memory.
"""

import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from environments import disk
from environments.library.data.layouts import DataFile, Layout, of_split, read_layout
from trainers.data.examples import COLUMNS
from trainers.errors import DataError, DataUnreachable
from trainers.hub import snapshot
from trainers.run_config.data import DATA_SUFFIXES, dataset_name, is_hub_name

_DEFAULT = "default"
"""Config of a README that `datasets` loads where none is named."""
_MOST_NAMED = 12
"""Splits or directories that an error lists."""
_ROWS = 256
"""Rows of a Parquet or Arrow file that are Python objects at a time."""


class _Asked(NamedTuple):
    """What a config section asks for."""

    section: str
    split: str
    hub_name: str = ""
    """Of what the hub has."""


def find_files(
    name: str, split: str, section: str = "data", datasets: Path | None = None, notes: Path | None = None
) -> list[Path]:
    """The data files behind `path` and `split` of a config section. Raises DataError, DataUnreachable.

    `datasets`: where the control plane writes versions of datasets. `notes`: where the run notes what it was given: for
    a name of the hub, and which files of a directory.
    """
    if (version := dataset_name(name)) is not None:
        place = None if datasets is None else datasets / version
        if place is None or not place.is_dir():
            raise DataError(
                f"{section}.path: {name} is written by the control plane, and is not there: launch the run again"
            )
        return _in_directory(place, _Asked(section, split))
    path = Path(name)
    if path.is_file():
        return [path]
    if path.is_dir():
        return _noted(path, _Asked(section, split), notes)
    if is_hub_name(name):
        return _noted(_download(name, section, notes), _Asked(section, split, name), notes)
    raise DataError(f"{section}.path: there is no {name} on this machine (relative paths start at {Path.cwd()})")


def is_plain(path: Path) -> bool:
    """Whether a file's lines can be read in place, in any order."""
    return not path.name.endswith((".gz", ".parquet", ".arrow"))


def read_lines(path: Path) -> Iterator[bytes]:
    """The rows of a file that is not plain, as lines of JSON without line ends. Raises DataError naming the file."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                yield from (line.rstrip(b"\r\n") for line in file)
            return
        for batch in _parquet(path) if path.suffix == ".parquet" else _arrow(path):
            for row in batch.to_pylist():
                yield msgspec.json.encode(_without_nulls(row))
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def _noted(directory: Path, asked: _Asked, notes: Path | None) -> list[Path]:
    """The files of a directory that a run began with: others may have come, and each has its place in the order."""
    if notes is None:
        return _in_directory(directory, asked)
    note, key = notes / f"{asked.section}.files.json", [str(directory), asked.split]
    if note.exists():
        noted = json.loads(note.read_bytes())
        if noted["of"] == key:
            return [directory / name for name in noted["files"]]
    found = _in_directory(directory, asked)
    content = {"of": key, "files": [str(path.relative_to(directory)) for path in found]}
    note.parent.mkdir(parents=True, exist_ok=True)
    disk.write_file(note, json.dumps(content).encode())
    return found


def _in_directory(directory: Path, asked: _Asked) -> list[Path]:
    if (directory / "dataset_dict.json").is_file():
        splits = json.loads((directory / "dataset_dict.json").read_bytes())["splits"]
        if asked.split not in splits:
            raise _no_split(directory, splits, asked)
        directory = directory / asked.split
    if (directory / "state.json").is_file():
        state = json.loads((directory / "state.json").read_bytes())
        return [directory / part["filename"] for part in state["_data_files"]]
    try:
        layout = read_layout(directory, DATA_SUFFIXES)
    except ValueError as error:
        raise DataError(f"{asked.section}.path: {error}") from None
    meant = _meant(layout)
    found = of_split(meant, asked.split, numbered=True)
    splits = sorted({file.bare(file.split) for file in meant if file.split})
    if not found and splits:
        raise _no_split(directory, splits, asked)
    _refuse_several(directory, layout.files, found, asked)
    return [file.path for file in found or meant]


def _meant(layout: Layout) -> list[DataFile]:
    """Files of the config that its README means where none is named; all where it means none."""
    default = layout.default or (_DEFAULT if layout.is_declared else "")
    return [file for file in layout.files if default and file.config == default] or layout.files


def _refuse_several(directory: Path, files: Sequence[DataFile], found: Sequence[DataFile], asked: _Asked) -> None:
    """Raise DataError where what was found is not one split of one config: another often has the same rows again."""
    splits = sorted({file.bare(file.split) for file in found})
    groups = sorted({file.group for file in found})
    told, fix = f"{asked.section}.path: {directory} has several", ""
    if len(splits) > 1:
        told += f" splits that {asked.split!r} may mean"
        fix = f"Set {asked.section}.split to one of: {_listed(splits)}"
    elif len(groups) > 1:
        told += f" configs with a split {asked.split!r}: {_listed(groups)}"
        fix = _narrower(directory, _places(files, found), asked)
    if fix:
        raise DataError(f"{told}. {fix}")


def _narrower(directory: Path, places: Sequence[Path], asked: _Asked) -> str:
    """How to name one config."""
    key = f"{asked.section}.path"
    if not places:
        return f"Put the files of one into a directory of their own, and set {key} to that"
    if not asked.hub_name:
        return f"Set {key} to one of: {_listed([str(place) for place in places])}"
    # A run sees nothing of the hub's cache but all of a name, so a place in the cache is no fix.
    fetch = f"hf download --repo-type dataset {asked.hub_name} --local-dir DIR"
    copied = [f"DIR/{place.relative_to(directory)}" for place in places]
    return f"Fetch it by `{fetch}`, and set {key} to one of: {_listed(copied)}"


def _places(files: Sequence[DataFile], found: Sequence[DataFile]) -> list[Path]:
    """What to name instead, for each group of files: the highest directory with it alone, or its only file.

    Nothing for a group that has neither.
    """
    below: defaultdict[Path, set[str]] = defaultdict(set)
    of_group: defaultdict[str, list[Path]] = defaultdict(list)
    places: list[Path] = []
    paths_found = {file.path for file in found}
    for file in (*found, *(file for file in files if file.path not in paths_found)):
        for parent in file.path.parents:
            below[parent].add(file.group)
    for file in found:
        of_group[file.group].append(file.path)
    for group, paths in sorted(of_group.items()):
        alone = (each for each in reversed(paths[0].parents) if below[each] == {group})
        common = next((each for each in alone if all(path.is_relative_to(each) for path in paths)), None)
        if common is not None:
            places.append(common)
        elif len(paths) == 1:
            places += paths
    return places


def _no_split(directory: Path, splits: Sequence[str], asked: _Asked) -> DataError:
    fix = f"Set {asked.section}.split to one of: {_listed(splits)}"
    return DataError(f"{asked.section}.path: {directory} has no split {asked.split!r}. {fix}")


def _listed(names: Sequence[str]) -> str:
    listed = ", ".join(name or "." for name in names[:_MOST_NAMED])
    return listed if len(names) <= _MOST_NAMED else f"{listed} and {len(names) - _MOST_NAMED} more"


def _download(name: str, section: str, notes: Path | None) -> Path:
    try:
        return snapshot("dataset", name, notes)
    except Exception as error:  # noqa: BLE001 - of the hub's client, whose HTTP library changes with its version
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        fix = "Name a file or directory, or make the hub reachable from the trainer"
        raise DataUnreachable(
            f"{section}.path: {name!r} is nothing on this machine, and the hub did not give it: {reason}. {fix}"
        ) from None


def _parquet(path: Path) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        columns = [name for name in file.schema_arrow.names if name in COLUMNS]
        yield from file.iter_batches(_ROWS, columns=columns, use_threads=False)


def _arrow(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as file:
        try:
            reader = pa.ipc.open_stream(file)  # what `datasets` writes
        except pa.ArrowInvalid:
            reader = pa.ipc.open_file(file)
            batches: Iterator[pa.RecordBatch] = map(reader.get_batch, range(reader.num_record_batches))
        else:
            batches = iter(reader)
        for batch in batches:
            known = batch.select([name for name in batch.schema.names if name in COLUMNS])
            yield from (known.slice(at, _ROWS) for at in range(0, known.num_rows, _ROWS))


def _without_nulls(value: Any) -> Any:
    """A row without absent keys: Arrow gives every struct the keys of all structs of its column."""
    if isinstance(value, dict):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value
