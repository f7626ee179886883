"""Where examples come from: what `data.path` names, as the files behind it, and each file as lines of JSON.

    file                     itself
    directory                the files of one split, in the order of their names
    directory that Hugging Face's `datasets` saved      the Arrow files that its state.json names
    dataset:NAME@3           what the control plane wrote of that version before the trainer started
    anything else            a data set of the hub: downloaded once, then a directory, for a run always the same

Files are JSONL (also gzipped, as `rollyard export-sft` writes them), Parquet or Arrow. Rows of the latter two become
lines of JSON, in constant memory.
"""

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from trainers.data.examples import COLUMNS
from trainers.errors import DataError, DataUnreachable
from trainers.hub import snapshot
from trainers.run_config.data import DATA_SUFFIXES, dataset_name, is_hub_name

_METADATA = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
_SPLITS = {"train", "training", "validation", "valid", "val", "dev", "test", "testing", "eval"}
_ROWS = 256
"""Rows of a Parquet or Arrow file that are Python objects at a time."""


def find_files(
    name: str, split: str, section: str = "data", datasets: Path | None = None, notes: Path | None = None
) -> list[Path]:
    """The data files behind `path` and `split` of a config section. Raises DataError, DataUnreachable.

    `datasets`: where the control plane writes versions of datasets. `notes`: where the run notes what it was given for
    a name of the hub.
    """
    if (version := dataset_name(name)) is not None:
        place = None if datasets is None else datasets / version
        if place is None or not place.is_dir():
            raise DataError(
                f"{section}.path: {name} is written by the control plane, and is not there: launch the run again"
            )
        return _in_directory(place, split, section)
    path = Path(name)
    if path.is_file():
        return [path]
    if path.is_dir():
        return _in_directory(path, split, section)
    if is_hub_name(name):
        return _in_directory(_download(name, section, notes), split, section)
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


def _in_directory(directory: Path, split: str, section: str) -> list[Path]:
    if (directory / "dataset_dict.json").is_file():
        splits = json.loads((directory / "dataset_dict.json").read_bytes())["splits"]
        if split not in splits:
            raise _no_split(directory, split, splits, section)
        directory = directory / split
    if (directory / "state.json").is_file():
        state = json.loads((directory / "state.json").read_bytes())
        return [directory / part["filename"] for part in state["_data_files"]]
    files = [
        path
        for path in sorted(directory.rglob("*"))
        if path.name.endswith(DATA_SUFFIXES) and path.name not in _METADATA and not path.name.startswith(".")
    ]
    if not files:
        raise DataError(f"{section}.path: {directory} has no data files ({', '.join(DATA_SUFFIXES)})")
    words = {path: set(re.split(r"[^A-Za-z0-9]+", str(path.relative_to(directory)))) for path in files}
    of_split = [path for path in files if split in words[path]]
    named = set().union(*words.values()) & _SPLITS
    if not of_split and named:
        raise _no_split(directory, split, sorted(named), section)
    return of_split or files


def _no_split(directory: Path, split: str, splits: list[str], section: str) -> DataError:
    fix = f"Set {section}.split to one of: {', '.join(splits)}"
    return DataError(f"{section}.path: {directory} has no split {split!r}. {fix}")


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
