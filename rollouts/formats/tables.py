"""Lines of examples as a Parquet file, which the trainer and Hugging Face's `datasets` read as they read the lines.

Messages are lists of structs; `tools`, whose schemas differ from line to line, is the text of their JSON.
"""

import io
import json
from types import TracebackType
from typing import Any, BinaryIO, Self

import msgspec
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

_ROWS = 2_000
_BYTES = 8 * 2**20
"""Lines that are in memory at a time, and in a row group, at most: whichever comes first."""
_TEXT = pa.string()
_TEXTS = pa.list_(_TEXT)
_FUNCTION = pa.struct([("name", _TEXT), ("arguments", _TEXT)])
_CALL = pa.struct([("id", _TEXT), ("type", _TEXT), ("function", _FUNCTION)])
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
_TOKENS = {"token_ids": pa.list_(pa.int64()), "loss_mask": pa.list_(pa.int8())}
_CONTINUED = {"prompt": _MESSAGES, "completion": _MESSAGES}
_SOURCE = {
    "tools": _TEXT,
    "run": _TEXT,
    "step": pa.int64(),
    "environment": _TEXT,
    "environment_version": _TEXT,
    "policy_version": pa.int64(),
    "teacher": _TEXT,
    "problem_key": _TEXT,
    "group": _TEXT,
    "rollout": pa.int32(),
    "seat": _TEXT,
    "branch": pa.int32(),
    "reward": pa.float64(),
}
_HUMAN = {"labellers": _TEXTS, "guidelines": _TEXTS, "human": pa.bool_(), "original": _MESSAGES}
_ANSWERS = {"chosen": _MESSAGES, "rejected": _MESSAGES}
_REWARDS = {"chosen_reward": pa.float64(), "rejected_reward": pa.float64()}
COLUMNS: dict[str, dict[str, pa.DataType]] = {
    "examples": {"messages": _MESSAGES, **_CONTINUED, **_TOKENS, **_SOURCE},
    "pairs": {**_ANSWERS, **_REWARDS, **_SOURCE},
    "sft": {**_CONTINUED, **_TOKENS, **_SOURCE, **_HUMAN},
    "kto": {**_CONTINUED, "label": pa.bool_(), **_TOKENS, **_SOURCE, **_HUMAN},
    "dpo": {"prompt": _MESSAGES, **_ANSWERS, **_REWARDS, "rejected_rollout": pa.int32(), **_SOURCE, **_HUMAN},
}
"""Of `rollyard export-sft RUN`, without and with `--pairs`, and of the forms of an export."""
_CONVERSATIONS = [name for name, kind in {**COLUMNS["examples"], **COLUMNS["dpo"]}.items() if kind == _MESSAGES]


class Untabular(ValueError):
    """A line that is no row."""


class ParquetLines:
    """Takes lines of JSON and writes them as rows; complete when the block ends. The same lines are the same bytes."""

    def __init__(self, file: BinaryIO, kind: str = "examples") -> None:
        """`kind`: a key of COLUMNS."""
        self._schema = pa.schema(list(COLUMNS[kind].items()))
        self._writer = pq.ParquetWriter(file, self._schema, compression="zstd")
        self._lines: list[bytes] = []
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._flush()
        finally:
            self._writer.close()

    def write(self, line: bytes) -> None:
        """Add a row. Raises Untabular for what is none, such as a pair of token arrays, or a message with more than the
        table has columns for. What a line says beside its messages is left out where there is no column of it."""
        self._lines.append(line)
        self._size += len(line)
        if len(self._lines) == _ROWS or self._size >= _BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._lines:
            self._writer.write_table(self._table())
        self._lines, self._size = [], 0

    def _table(self) -> pa.Table:
        block = b"".join(self._lines)
        try:
            table = self._read(block, more="infer")
            if table.schema.equals(self._schema):
                return table
        except pa.ArrowInvalid:
            pass
        # Text in parts, tools that are no text, messages that say more, or no row at all.
        return self._read(b"".join(map(self._plain, self._lines)))

    def _read(self, block: bytes, *, more: str = "ignore") -> pa.Table:
        return pyarrow.json.read_json(
            io.BytesIO(block),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            parse_options=pyarrow.json.ParseOptions(explicit_schema=self._schema, unexpected_field_behavior=more),
        ).select(self._schema.names)

    def _plain(self, line: bytes) -> bytes:
        """A line as the schema has it. Raises Untabular."""
        row = msgspec.json.decode(line)
        if row.get("tools") is not None and not isinstance(row["tools"], str):
            row["tools"] = json.dumps(row["tools"], ensure_ascii=False)
        for column in _CONVERSATIONS:
            if column in row and row[column] is not None:
                if not isinstance(row[column], list):
                    raise Untabular(f"{_named(row)} has {_kind(row[column])} and no messages: write it as JSONL")
                row[column] = [_joined(message, row) for message in row[column]]
        plain = msgspec.json.encode(row) + b"\n"
        try:
            self._read(plain)
        except pa.ArrowInvalid as error:
            raise Untabular(f"{_named(row)} is no row of this table ({error}): write it as JSONL") from None
        return plain


def _named(row: dict[str, Any]) -> str:
    return f"group {row['group']}" if row.get("group") else "a line of a file"


def _kind(value: Any) -> str:
    return "text" if isinstance(value, str) else "tokens"


def _joined(message: Any, row: dict[str, Any]) -> Any:
    """With text in place of parts of text, and in place of arguments that are an object. Raises Untabular."""
    if not isinstance(message, dict):
        return message
    _check_keys("a message", message, _MESSAGE, row)
    changed = dict(message)
    if isinstance(parts := message.get("content"), list):
        if any(not isinstance(part, dict) or not isinstance(part.get("text"), str) for part in parts):
            raise Untabular(f"{_named(row)} has content with parts that are not text: write it as JSONL")
        changed["content"] = "".join(part["text"] for part in parts)
    if isinstance(message.get("tool_calls"), list):
        changed["tool_calls"] = [_text_arguments(call, row) for call in message["tool_calls"]]
    return changed


def _check_keys(what: str, value: dict[str, Any], kind: pa.StructType, row: dict[str, Any]) -> None:
    for name, each in value.items():
        if each is not None and kind.get_field_index(name) < 0:
            raise Untabular(f"{_named(row)} has {what} with {name!r}, and a table no column of it: write it as JSONL")


def _text_arguments(call: Any, row: dict[str, Any]) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if isinstance(call, dict):
        _check_keys("a tool call", call, _CALL, row)
    if isinstance(function, dict):
        _check_keys("a tool call", function, _FUNCTION, row)
    if not isinstance(function, dict) or isinstance(function.get("arguments"), str | None):
        return call
    return call | {"function": function | {"arguments": json.dumps(function["arguments"], ensure_ascii=False)}}
