"""Examples as Parquet are the lines of JSONL, for whoever trains on them."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from environments.types import FunctionCall, Message, ToolCall
from rollouts.formats.tables import ParquetLines, Untabular
from rollouts.models import Run
from rollouts.services.curation import examples
from rollouts.services.curation.examples import Selection
from tests.rollouts import story
from tests.rollouts.curation.test_examples import PROMPT, said, submit
from tests.rollouts.curation.test_exchange import launch
from trainers.data.examples import parse_example, parse_pair
from trainers.data.sources import read_lines

pytestmark = pytest.mark.django_db
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}}}
OTHER_TOOL = {"type": "function", "function": {"name": "see", "parameters": {"required": ["b"]}}}


@pytest.fixture
def run() -> Run:
    run = launch()
    called = Message("assistant", None, tool_calls=[ToolCall("1", FunctionCall("add", '{"a": 1}'))])
    told = [PROMPT, called, Message("tool", "2", tool_call_id="1"), Message("assistant", "2", reasoning_content="hm")]
    submit(
        run,
        [said('né\n"x"', 1.0), said("no", 0.0)],
        [story.rollout(1.0, messages=told, tools=[TOOL], tokens=9), said("no", 0.0)],
        [story.rollout(0.5, messages=[PROMPT, Message("assistant", "b")], tools=[OTHER_TOOL]), said("no", 0.0)],
        [story.rollout(0.5, messages=[]), story.rollout(0.25, messages=[])],
    )
    return run


def written(run: Run, path: Path, export: Any, kind: str = "examples") -> tuple[list[bytes], list[bytes]]:
    """The lines as they are, and as they come back from the table."""
    lines = list(export(run, Selection()))
    with path.open("wb") as file, ParquetLines(file, kind) as table:
        for line in lines:
            table.write(line)
    return lines, list(read_lines(path))


def test_a_table_of_examples_trains_what_the_lines_train(run: Run, tmp_path: Path) -> None:
    lines, back = written(run, tmp_path / "a.parquet", examples.export_examples)
    assert len(lines) == 4
    assert [parse_example(line, "x", ["assistant"]) for line in back] == [
        parse_example(line, "x", ["assistant"]) for line in lines
    ]


THOUGHT = {"role": "assistant", "content": "a", "thinking": "hm"}
STRICT = {"type": "function", "function": {"name": "f", "arguments": "{}", "strict": True}}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (THOUGHT, "a message with 'thinking'"),
        ({"role": "assistant", "content": "a", "tool_calls": [STRICT]}, "a tool call with 'strict'"),
        ({"role": "assistant", "content": "a", "tool_calls": [{"index": 0}]}, "a tool call with 'index'"),
    ],
)
@pytest.mark.parametrize("beside", [{"group": "g"}, {"group": "g", "tools": [TOOL]}])
def test_a_table_says_which_message_has_more_than_it_holds(
    tmp_path: Path, said: dict[str, Any], told: str, beside: dict[str, Any]
) -> None:
    line = msgspec.json.encode({"messages": [{"role": "user", "content": "?"}, said], **beside})
    with (
        (tmp_path / "a.parquet").open("wb") as file,
        pytest.raises(Untabular, match=f"group g has {told}.* write it as JSONL"),
        ParquetLines(file) as table,
    ):
        table.write(line + b"\n")


def test_a_table_leaves_out_what_a_line_says_beside_its_messages(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!", "thinking": None}]
    with (tmp_path / "a.parquet").open("wb") as file, ParquetLines(file) as table:
        for more in (1, "one", {"a": 1}):
            table.write(msgspec.json.encode({"messages": messages, "more": more}) + b"\n")
    assert len(list(read_lines(tmp_path / "a.parquet"))) == 3


def test_a_table_of_pairs_trains_what_the_lines_train(run: Run, tmp_path: Path) -> None:
    conversations = [line for line in examples.export_pairs(run, Selection()) if b'"token_ids"' not in line]
    with (tmp_path / "a.parquet").open("wb") as file, ParquetLines(file, "pairs") as table:
        for line in conversations:
            table.write(line)
    back = list(read_lines(tmp_path / "a.parquet"))
    assert len(back) == 3
    assert [parse_pair(line, "x", ["assistant"]) for line in back] == [
        parse_pair(line, "x", ["assistant"]) for line in conversations
    ]
