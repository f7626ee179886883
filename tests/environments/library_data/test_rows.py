"""Rows are the same whatever file they lie in."""

from pathlib import Path

import pytest

from environments.library.data.rows import read
from tests.environments.library_data.tables import write

ROWS = [{"question": f"What is {number}?", "answer": str(number), "tags": ["a", "b"]} for number in range(2_500)]


@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.jsonl.gz", "x.parquet", "x.arrow"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    rows = read([write(tmp_path / name, ROWS)])
    assert rows.columns == ["question", "answer", "tags"]
    assert list(rows) == ROWS
    assert [rows[number] for number in (0, 1_234, 2_499)] == [ROWS[0], ROWS[1_234], ROWS[2_499]]
    assert [row["answer"] for row in rows.scan(["answer"])] == [row["answer"] for row in ROWS]
    for number in (-1, 2_500):
        with pytest.raises(IndexError):
            rows[number]


def test_rows_of_several_files_are_numbered_through(tmp_path: Path) -> None:
    kinds = ["a.jsonl", "b.parquet", "c.json"]
    paths = [write(tmp_path / name, ROWS[10 * at : 10 * at + 10]) for at, name in enumerate(kinds)]
    paths.insert(1, write(tmp_path / "empty.jsonl", []))
    rows = read(paths)
    assert len(rows) == 30
    assert [rows[number] for number in range(30)] == list(rows) == ROWS[:30]


def test_a_file_of_one_object_is_one_row_and_json_may_have_a_row_per_line(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('{\n  "problem": "1 + 1",\n  "level": 2\n}')
    (tmp_path / "lines.json").write_text('{"problem": "a"}\n\n{"problem": "b"}\n')
    assert list(read([tmp_path / "one.json"])) == [{"problem": "1 + 1", "level": 2}]
    assert list(read([tmp_path / "lines.json"])) == [{"problem": "a"}, {"problem": "b"}]


def test_a_table_gives_only_the_columns_that_are_asked_for(tmp_path: Path) -> None:
    rows = read([write(tmp_path / "x.parquet", ROWS)])
    assert next(iter(rows.scan(["tags", "unknown"]))) == {"tags": ["a", "b"]}


def test_a_file_that_changed_is_read_again_and_no_other(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", ROWS[:2])
    first = read([path])
    assert read([path]) is first
    write(path, ROWS[:3])
    assert len(read([path])) == 3


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("x.jsonl", b'{"a": 1}\n[1]\n', "line 2 of .*x.jsonl is no JSON object"),
        ("x.jsonl", b'{"a": 1}\n{"a"', "line 2 of .*x.jsonl is no JSON object"),
        ("x.jsonl", b"\xff\xfe\n", "line 1 of .*x.jsonl is no JSON object"),
        ("x.jsonl", b'{"a": ' + b"[" * 100_000 + b"\n", "line 1 of .*x.jsonl is no JSON object"),
        ("x.jsonl", b"\n\n", "no rows in there"),
        ("x.json", b"[1, 2]", "neither a JSON object nor a list of them"),
        ("x.jsonl.gz", b"not packed", "cannot be unpacked"),
        ("x.parquet", b"PAR1 but no more", "cannot be read"),
        ("x.arrow", b"nothing of Arrow", "cannot be read"),
        ("x.arrow", b"", "cannot be read"),
    ],
)
def test_a_broken_file_is_a_sentence_that_names_it(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"^data: .*{told}") as refused:
        list(read([tmp_path / name]))
    assert "\n" not in str(refused.value)
