"""Rows of data files as dicts, by number: JSON, JSON lines, CSV, Parquet and Arrow.

What a file holds stays as it is (lines, or columns of Arrow) until a row is asked for, so that a data set takes hardly
more memory than its file; a process that reads the same files again gets what it has.
"""

import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import msgspec

from environments.library.data.csv_rows import CsvRows
from environments.types import JsonObject

_AT_A_TIME = 1_000
"""Rows of an Arrow table that are Python objects at a time."""
_DATA_SETS_KEPT = 4


class _Part(Protocol):
    """Rows of one file."""

    columns: list[str]

    def __len__(self) -> int: ...

    def row(self, number: int) -> JsonObject: ...

    def rows(self, columns: Sequence[str] | None) -> Iterable[JsonObject]: ...


class Rows:
    """All rows of some files, numbered through."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts = parts
        self._firsts = [0, *accumulate(map(len, parts))]

    @property
    def columns(self) -> list[str]:
        """Names that the first row or the table has."""
        return self._parts[0].columns

    def __len__(self) -> int:
        return self._firsts[-1]

    def __getitem__(self, number: int) -> JsonObject:
        """A row; raises IndexError."""
        if not 0 <= number < len(self):
            raise IndexError(f"there is no row {number} among {len(self)}")
        at = next(at for at, first in enumerate(self._firsts) if number < first) - 1
        return self._parts[at].row(number - self._firsts[at])

    def __iter__(self) -> Iterator[JsonObject]:
        return self.scan(None)

    def scan(self, columns: Sequence[str] | None) -> Iterator[JsonObject]:
        """Every row in order; of those that tell columns apart only the ones named, where a file has them."""
        for part in self._parts:
            yield from part.rows(columns)


def read(paths: Sequence[Path]) -> Rows:
    """The rows of data files, in their order. Raises ValueError, which names file and line."""
    try:
        stamps = [(path, path.stat()) for path in paths]
        return _read(tuple((path, stamp.st_mtime_ns, stamp.st_size) for path, stamp in stamps))
    except OSError as error:
        raise ValueError(f"data: {error.filename} cannot be read: {error.strerror or error}") from None


@lru_cache(maxsize=_DATA_SETS_KEPT)
def _read(stamped: tuple[tuple[Path, int, int], ...]) -> Rows:
    parts = [part for path, _, _ in stamped if len(part := _part(path))]
    if not parts:
        raise ValueError(f"data: {', '.join(str(path) for path, _, _ in stamped[:3])}: no rows in there")
    return Rows(parts)


def _part(path: Path) -> _Part:
    if path.suffix in (".parquet", ".arrow"):
        return _Table(path)
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"data: {path} cannot be unpacked: {error}") from None
    if path.name.removesuffix(".gz").endswith(".csv"):
        return CsvRows(path, content)
    if path.name.removesuffix(".gz").endswith(".json"):
        try:
            whole = msgspec.json.decode(content)
        except msgspec.DecodeError:
            pass  # a row per line, whatever it is called
        else:
            return _Decoded(path, whole)
    return _Lines(path, content)


class _Lines:
    """A JSON object per line."""

    def __init__(self, path: Path, content: bytes) -> None:
        self._path = path
        self._lines = [(number, line) for number, line in enumerate(content.split(b"\n"), 1) if line.strip()]
        self.columns = list(self.row(0)) if self._lines else []

    def __len__(self) -> int:
        return len(self._lines)

    def row(self, number: int) -> JsonObject:
        return self._decoded(*self._lines[number])

    def rows(self, columns: Sequence[str] | None) -> Iterable[JsonObject]:
        return (self._decoded(*each) for each in self._lines)

    def _decoded(self, number: int, line: bytes) -> JsonObject:
        try:
            return _decode_object(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise ValueError(f"data: line {number} of {self._path} is no JSON object: {error}") from None


class _Decoded:
    """One JSON value: a list of objects, or an object that is the only row."""

    def __init__(self, path: Path, whole: Any) -> None:
        self._rows = [whole] if isinstance(whole, dict) else whole
        if not isinstance(self._rows, list) or not all(isinstance(row, dict) for row in self._rows):
            raise ValueError(f"data: {path} is neither a JSON object nor a list of them")
        self.columns = list(self._rows[0]) if self._rows else []

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, number: int) -> JsonObject:
        return dict(self._rows[number])

    def rows(self, columns: Sequence[str] | None) -> Iterable[JsonObject]:
        return iter(self._rows)


class _Table:
    """Columns."""

    def __init__(self, path: Path) -> None:
        # A quarter of a second, which nobody without such a file has to wait.
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            self._table = pq.ParquetFile(path).read() if path.suffix == ".parquet" else _arrow(path)
        except pa.ArrowException as error:
            raise ValueError(f"data: {path} cannot be read: {str(error).splitlines()[0]}") from None
        self.columns: list[str] = self._table.column_names

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def row(self, number: int) -> JsonObject:
        [row] = self._table.slice(number, 1).to_pylist()
        return dict(row)

    def rows(self, columns: Sequence[str] | None) -> Iterable[JsonObject]:
        table = self._table if columns is None else self._table.select([c for c in self.columns if c in columns])
        for batch in table.to_batches(max_chunksize=_AT_A_TIME):
            yield from batch.to_pylist()


def _arrow(path: Path) -> Any:
    import pyarrow as pa

    with pa.memory_map(str(path)) as file:
        try:
            return pa.ipc.open_stream(file).read_all()  # what `datasets` writes
        except pa.ArrowInvalid:
            return pa.ipc.open_file(file).read_all()


_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
