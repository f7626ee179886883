"""Data of SFT runs: every kind of file gives the same lines, in an order that depends on seed and step alone."""

import gzip
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import http_server
from trainers.config import resolve
from trainers.data.dataset import TrainingData, open_dataset
from trainers.data.examples import Conversation, parse_example
from trainers.data.order import batch_indices, hold_out
from trainers.data.sources import find_files
from trainers.data.table import Table
from trainers.errors import DataError

CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


def row(number: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"ab{number}"}, {"role": "assistant", "content": "é\u2028\n"}]
    return {"messages": messages, "reward": float(number)}


ROWS = [row(number) for number in range(600)]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in rows)
    table = pa.Table.from_pylist(rows)
    if path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines.encode()))
    elif path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=250)
    elif path.name == "file.arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    elif path.suffix == ".arrow":
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=300)
    else:
        path.write_text(lines, encoding="utf-8")
    return path


def messages_of(table: Table, index: int) -> list[dict[str, Any]]:
    line, where = table[index]
    example = parse_example(line, where, ["assistant"])
    assert isinstance(example, Conversation)
    return example.messages


def nothing(line: bytes, where: str) -> None:
    """Every line is good."""


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet", "stream.arrow", "file.arrow"])
def test_every_kind_of_file_gives_its_rows_in_any_order(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, ROWS)
    spool = tmp_path / "run"
    table = Table(find_files(str(path), "train"), spool, nothing)
    assert len(table) == 600
    for index in (599, 0, 257, 256, 3):
        assert messages_of(table, index) == ROWS[index]["messages"]
    assert table[41][1] == f"{path}:42"
    assert list(spool.glob("*")) == [], "nothing is left behind, whatever happens to the process"


def test_blank_lines_have_numbers_and_no_examples(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"\n{json.dumps(row(1))}\n  \n\n{json.dumps(row(2))}")
    table = Table([path], tmp_path, nothing)
    assert [table[index][1] for index in range(len(table))] == [f"{path}:2", f"{path}:5"]


def test_absent_keys_of_arrow_structs_stay_absent(tmp_path: Path) -> None:
    said = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "2", "name": "add"},
    ]
    path = write(tmp_path / "a.parquet", [{"messages": said, "when": None}])
    expected = [said[0], said[1] | {"content": ""}, said[2]]
    assert messages_of(Table([path], tmp_path, nothing), 0) == expected


def test_a_directory_gives_the_files_of_one_split(tmp_path: Path) -> None:
    first = write(tmp_path / "data" / "train-00000-of-00002.parquet", ROWS[:2])
    second = write(tmp_path / "data" / "train-00001-of-00002.parquet", ROWS[2:3])
    held = write(tmp_path / "data" / "test-00000-of-00001.parquet", ROWS[3:4])
    (tmp_path / "dataset_infos.json").write_text("{}")
    assert find_files(str(tmp_path), "train") == [first, second]
    assert find_files(str(tmp_path), "test") == [held]
    table = Table(find_files(str(tmp_path), "train"), tmp_path, nothing)
    assert [messages_of(table, index) for index in range(3)] == [each["messages"] for each in ROWS[:3]]
    with pytest.raises(DataError, match=r"no split 'validation'. Set data.split to one of: test, train"):
        find_files(str(tmp_path), "validation")


def test_a_directory_without_names_of_splits_is_one_split(tmp_path: Path) -> None:
    files = [write(tmp_path / name, ROWS[:1]) for name in ("a.jsonl", "b.jsonl.gz")]
    assert find_files(str(tmp_path), "validation") == files
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no data files"):
        find_files(str(tmp_path / "empty"), "train")


def test_what_datasets_saved_is_read_in_the_order_of_its_state(tmp_path: Path) -> None:
    """The layout of `DatasetDict.save_to_disk`: Arrow streams, and a state.json that names them."""
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for split, at in (("train", 0), ("test", 4)):
        files = [write(tmp_path / split / f"data-0000{n}-of-00002.arrow", ROWS[at + n : at + n + 1]) for n in (0, 1)]
        state = {"_data_files": [{"filename": file.name} for file in reversed(files)], "_fingerprint": "x"}
        (tmp_path / split / "state.json").write_text(json.dumps(state))
        (tmp_path / split / "dataset_info.json").write_text("{}")
    for directory, split in ((tmp_path, "test"), (tmp_path / "test", "train")):
        table = Table(find_files(str(directory), split), tmp_path, nothing)
        assert [messages_of(table, index) for index in (0, 1)] == [ROWS[5]["messages"], ROWS[4]["messages"]]
    with pytest.raises(DataError, match=r"no split 'dev'. Set data.validation.split to one of: train, test"):
        find_files(str(tmp_path), "dev", "data.validation")


def test_what_is_not_there_or_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^data.path: there is no ./missing.jsonl on this machine"):
        find_files("./missing.jsonl", "train")
    with pytest.raises(DataError, match=r"there is no some/file.parquet on this machine"):
        find_files("some/file.parquet", "train")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(DataError, match=r"empty.jsonl: no examples"):
        Table([tmp_path / "empty.jsonl"], tmp_path, nothing)
    for name in ("torn.parquet", "torn.arrow", "torn.jsonl.gz"):
        (tmp_path / name).write_bytes(b"not that")
        with pytest.raises(DataError, match=f"{name} cannot be read"):
            Table([tmp_path / name], tmp_path, nothing)


@contextmanager
def hub(name: str, files: dict[str, bytes]) -> Iterator[str]:
    """A server with one data set, that speaks as much of the hub's protocol as a download needs."""
    sha = "a" * 40

    class Handler(http_server.Handler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path, body, headers = urlsplit(self.path).path, b"", {"X-Repo-Commit": sha}
            if path.startswith(f"/api/datasets/{name}/revision/"):
                siblings = [{"rfilename": file} for file in files]
                body = json.dumps({"id": name, "sha": sha, "siblings": siblings}).encode()
            elif path.startswith(f"/api/datasets/{name}/tree/"):
                body = json.dumps(
                    [{"type": "file", "path": file, "size": len(data), "oid": "b"} for file, data in files.items()]
                ).encode()
            else:
                body = files[path.removeprefix(f"/datasets/{name}/resolve/{sha}/")]
                headers["ETag"] = f'"{hashlib.sha256(body).hexdigest()}"'
            self.answer(200, body, headers)

    with http_server.serving(Handler) as url:
        yield url


def find_on_hub(url: str, home: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """`find_files` in a process whose hub is `url`; prints the files."""
    environ = os.environ | {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
    code = "import sys; from trainers.data.sources import find_files; print(*find_files(*sys.argv[1:]), sep='\\n')"
    argv = [sys.executable, "-c", code, *arguments]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_data_set_of_the_hub_is_downloaded_once(tmp_path: Path) -> None:
    parquet = write(tmp_path / "x.parquet", ROWS[:3]).read_bytes()
    files = {"data/train-0.parquet": parquet, "data/test-0.parquet": parquet, "README.md": b"#", "model.bin": b"x"}
    with hub("someone/data", files) as url:
        first = find_on_hub(url, tmp_path / "home", "someone/data", "train")
    assert first.returncode == 0, first.stderr
    [found] = first.stdout.splitlines()
    assert Path(found).read_bytes() == parquet
    assert not list((tmp_path / "home").rglob("model.bin"))
    again = find_on_hub("http://127.0.0.1:1", tmp_path / "home", "someone/data", "train")
    assert again.stdout == first.stdout, "what was downloaded needs no network"


@pytest.mark.slow
def test_without_a_network_a_name_of_the_hub_is_refused_with_the_fix(tmp_path: Path) -> None:
    done = find_on_hub("http://127.0.0.1:1", tmp_path, "someone/data", "train")
    assert (
        "DataUnreachable: data.path: 'someone/data' is nothing on this machine, and the hub did not give it"
        in done.stderr
    )
    assert "Name a file or directory" in done.stderr


# --- order ------------------------------------------------------------------------------------------------------------


def test_every_pass_sees_every_example_once_in_an_order_of_its_own() -> None:
    indices = np.concatenate([batch_indices(10, 4, step, seed=1) for step in range(5)])
    first, second = indices[:10], indices[10:]
    assert sorted(first) == sorted(second) == list(range(10))
    assert list(first) != list(second)
    assert batch_indices(10, 4, 3, seed=1) == list(indices[12:16])
    assert batch_indices(10, 4, 3, seed=2) != batch_indices(10, 4, 3, seed=1)


def test_a_batch_may_be_larger_than_the_data() -> None:
    assert sorted(batch_indices(2, 5, 0, seed=0)) in ([0, 0, 0, 1, 1], [0, 0, 1, 1, 1])


def test_the_order_is_the_same_in_every_version() -> None:
    """A run that goes on after an update must not see examples twice: these numbers are part of the format."""
    assert batch_indices(10, 5, 0, seed=7) == [4, 5, 9, 8, 1]


@pytest.mark.parametrize(("count", "share", "held"), [(100, 0.1, 10), (2, 0.9, 1), (100, 0.001, 1)])
def test_held_out_examples_are_never_trained_on(count: int, share: float, held: int) -> None:
    train, validation = hold_out(count, share, seed=1)
    assert len(validation) == held
    assert sorted([*train, *validation]) == list(range(count))


# --- a run's data -----------------------------------------------------------------------------------------------------


def opened(tmp_path: Path, path: Path, **data: Any) -> TrainingData:
    overrides = {f"data.{key}".replace("__", "."): value for key, value in data.items()}
    fixed = {"data.path": str(path), "data.batch_size": 8, "max_steps": 5, "seed": 3, "optimizer.warmup_steps": 0}
    return open_dataset(resolve("reverse-text-sft", overrides=fixed | overrides).config, tmp_path / "run")


def test_a_step_has_the_same_lines_whatever_was_read_before(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", ROWS)
    one, other = opened(tmp_path, path), opened(tmp_path, path)
    expected = [one.batch(step) for step in range(80)]
    assert [other.batch(step) for step in (79, 3, 74)] == [expected[step] for step in (79, 3, 74)]
    assert len({where for batch in expected[:75] for _, where in batch}) == 600


def test_a_held_out_share_is_validated_on_and_not_trained_on(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ROWS[:40])
    dataset = opened(tmp_path, path, validation__share=0.25, validation__every=2)
    held = [where for batch in dataset.validation_batches() for _, where in batch]
    trained = {where for step in range(20) for _, where in dataset.batch(step)}
    assert (len(held), len(set(held)), len(trained)) == (10, 10, 30)
    assert not trained & set(held)
    assert [dataset.is_validated_after(step) for step in range(5)] == [False, True, False, True, True]
    assert not any(opened(tmp_path, path).is_validated_after(step) for step in range(5))
    assert list(opened(tmp_path, path).validation_batches()) == []


def test_a_held_out_file_is_validated_on_whole(tmp_path: Path) -> None:
    held = write(tmp_path / "held.parquet", ROWS[:11])
    dataset = opened(tmp_path, write(tmp_path / "a.jsonl", ROWS[:40]), validation__path=str(held))
    assert [len(batch) for batch in dataset.validation_batches()] == [8, 3]


def test_a_bad_line_ends_the_run_at_its_start(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", [row(1), {"messages": [{"role": "user", "content": "x"}]}])
    with pytest.raises(DataError, match=r"a.parquet:2: needs a message of assistant"):
        opened(tmp_path, path)
    single = write(tmp_path / "one.jsonl", ROWS[:1])
    with pytest.raises(DataError, match="has one example, and none to hold out"):
        opened(tmp_path, single, validation__share=0.5)
