"""Rows of a CSV file: all of its values are texts."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from environments.types import JsonObject

_LONGEST = 2**24
"""Characters of a value."""
_MMLU = ["question", "A", "B", "C", "D", "answer"]
"""Columns of MMLU's own files, which name none; what they ask about is in the name of the file."""
_SPLIT = re.compile(r"_(dev|val|test|train)$")


class CsvRows:
    """A row per record, columns by the first one. Raises ValueError for what is no CSV."""

    def __init__(self, path: Path, content: bytes) -> None:
        csv.field_size_limit(_LONGEST)
        try:
            records = [each for each in csv.reader(io.StringIO(content.decode("utf-8-sig"), newline="")) if each]
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"data: {path} is no CSV in UTF-8: {error}") from None
        self._more: JsonObject = {}
        if records and len(records[0]) == len(_MMLU) and records[0][-1] in ("A", "B", "C", "D"):
            records.insert(0, _MMLU)
            self._more = {"subject": _SPLIT.sub("", path.name.partition(".")[0])}
        names, self._records = (records[0], records[1:]) if records else ([], [])
        if len(set(names)) < len(names) or not all(names):
            raise ValueError(f"data: the first line of {path} has to name its columns, each once")
        for number, record in enumerate(self._records, 2):
            if len(record) != len(names):
                raise ValueError(f"data: row {number} of {path} has {len(record)} values for {len(names)} columns")
        self._names = names
        self.columns = [*names, *self._more]

    def __len__(self) -> int:
        return len(self._records)

    def row(self, number: int) -> JsonObject:
        """One of them."""
        return dict(zip(self._names, self._records[number], strict=True)) | self._more

    def rows(self, columns: Sequence[str] | None) -> Iterable[JsonObject]:
        """All of them, with all columns."""
        return map(self.row, range(len(self)))
