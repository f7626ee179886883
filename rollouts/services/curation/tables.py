"""Lines of examples as a Parquet file, which the trainer and Hugging Face's `datasets` read as they read the lines.

Messages are lists of structs; `tools`, whose schemas differ from line to line, is the text of their JSON.
"""

import json
from types import TracebackType
from typing import Any, BinaryIO, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

_ROWS = 256
"""That are in memory at a time, and in a row group."""
_TEXT = pa.string()
_CALL = pa.struct(
    [("id", _TEXT), ("type", _TEXT), ("function", pa.struct([("name", _TEXT), ("arguments", _TEXT)]))],
)
_MESSAGE = pa.struct(
    [
        ("role", _TEXT),
        ("content", _TEXT),
        ("name", _TEXT),
        ("tool_calls", pa.list_(_CALL)),
        ("tool_call_id", _TEXT),
        ("reasoning_content", _TEXT),
    ]
)
_MESSAGES = pa.list_(_MESSAGE)
_EXAMPLE = {
    "messages": _MESSAGES,
    "token_ids": pa.list_(pa.int64()),
    "loss_mask": pa.list_(pa.int8()),
    "rollout": pa.int32(),
    "branch": pa.int32(),
    "reward": pa.float64(),
}
_PAIR = {
    "chosen": _MESSAGES,
    "rejected": _MESSAGES,
    "chosen_reward": pa.float64(),
    "rejected_reward": pa.float64(),
}
_SOURCE = {
    "tools": _TEXT,
    "run": _TEXT,
    "group": _TEXT,
    "environment": _TEXT,
    "environment_version": _TEXT,
    "problem_key": _TEXT,
    "seat": _TEXT,
    "teacher": _TEXT,
    "policy_version": pa.int64(),
}


class Untabular(ValueError):
    """A line that is no row."""


class ParquetLines:
    """Takes lines of JSON and writes them as rows; complete when the block ends."""

    def __init__(self, file: BinaryIO, *, pairs: bool = False) -> None:
        """`pairs`: lines with `chosen` and `rejected` messages."""
        schema = pa.schema(list(((_PAIR if pairs else _EXAMPLE) | _SOURCE).items()))
        self._writer = pq.ParquetWriter(file, schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._flush()
        self._writer.close()

    def write(self, line: bytes) -> None:
        """Add a row. Raises Untabular for a pair of token arrays."""
        row = msgspec.json.decode(line)
        if "tools" in row:
            row["tools"] = json.dumps(row["tools"], ensure_ascii=False)
        for column in ("messages", "chosen", "rejected"):
            if isinstance(row.get(column), dict):
                raise Untabular(f"group {row['group']} has tokens and no messages: write its pairs as JSONL")
            if column in row:
                row[column] = [_plain(message) for message in row[column]]
        self._rows.append(row)
        if len(self._rows) == _ROWS:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._writer.schema))
        self._rows = []


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """With text in place of parts of text."""
    content = message.get("content")
    if isinstance(content, list):
        return message | {"content": "".join(part["text"] for part in content)}
    return message
