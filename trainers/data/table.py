"""Examples by number, from files too large for memory: 16 bytes are kept for each, the rest stays on disk.

Lines of plain JSONL are read in place. Other files are first written out as lines, to a file without a name that
vanishes with the process, in the directory that the caller chose.
"""

import tempfile
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

from trainers.data.sources import is_plain, read_lines
from trainers.errors import DataError


class Table:
    """Lines of one or more files, numbered from 0, blank ones left out."""

    def __init__(self, files: Iterable[Path], spool_dir: Path, check: Callable[[bytes, str], object]) -> None:
        """Read everything once, so that a bad line ends a run at its start: `check` raises DataError for it."""
        self._shards: list[_Shard] = []
        self._firsts: list[int] = []
        self._count = 0
        for path in files:
            shard = _Shard(path, spool_dir, check)
            self._shards.append(shard)
            self._firsts.append(self._count)
            self._count += len(shard.starts)
        if not self._count:
            names = ", ".join(str(shard.path) for shard in self._shards)
            raise DataError(f"{names}: no examples in there")

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[bytes, str]:
        """The line, and `file:line` to name it by."""
        at = bisect_right(self._firsts, index) - 1
        return self._shards[at].read(index - self._firsts[at])


class _Shard:
    def __init__(self, path: Path, spool_dir: Path, check: Callable[[bytes, str], object]) -> None:
        self.path = path
        self.starts = array("q")
        self._numbers = array("q")
        self._file = self._open(spool_dir)
        start = 0
        for number, line in enumerate(self._file, start=1):
            if line.strip():
                check(line, f"{path}:{number}")
                self.starts.append(start)
                self._numbers.append(number)
            start += len(line)

    def read(self, index: int) -> tuple[bytes, str]:
        self._file.seek(self.starts[index])
        return self._file.readline(), f"{self.path}:{self._numbers[index]}"

    def _open(self, spool_dir: Path) -> BinaryIO:
        if is_plain(self.path):
            try:
                return self.path.open("rb")
            except OSError as error:
                raise DataError(f"{self.path} cannot be read: {error.strerror}") from None
        spool_dir.mkdir(parents=True, exist_ok=True)
        spool: BinaryIO = tempfile.TemporaryFile(dir=spool_dir)  # type: ignore[assignment]  # noqa: SIM115 - stays open
        for line in read_lines(self.path):
            spool.write(line + b"\n")
        spool.seek(0)
        return spool
