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
from trainers.run_config import RunConfig

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


PREFERENCES = [
    f"data/{split}-00000-of-0000{shards}.parquet"
    for split, shards in (("test_prefs", 1), ("test_sft", 1), ("train_gen", 1), ("train_prefs", 2), ("train_sft", 1))
] + ["data/train_prefs-00001-of-00002.parquet"]
"""Files of HuggingFaceH4/ultrafeedback_binarized: the same prompts, thrice."""


def laid_out(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def found(root: Path, split: str) -> list[str]:
    return [path.relative_to(root).as_posix() for path in find_files(str(root), split)]


def test_a_split_is_what_all_of_a_name_says(tmp_path: Path) -> None:
    root = laid_out(tmp_path, *PREFERENCES)
    assert found(root, "train_prefs") == [f"data/train_prefs-0000{shard}-of-00002.parquet" for shard in (0, 1)]
    assert found(root, "test_sft") == ["data/test_sft-00000-of-00001.parquet"]
    with pytest.raises(
        DataError, match=r"no split 'validation'. Set data.split to one of: test_prefs, test_sft, train_"
    ):
        find_files(str(root), "validation")
    laid_out(root, "data/train-00000-of-00001.parquet")
    assert found(root, "train") == ["data/train-00000-of-00001.parquet"]


@pytest.mark.parametrize("separator", ["_", "-", "."])
def test_a_word_in_the_names_of_several_splits_is_refused_with_the_names_to_set(tmp_path: Path, separator: str) -> None:
    root = laid_out(tmp_path, *(name.replace("_", separator) for name in PREFERENCES))
    listed = [f"train{separator}{part}" for part in ("gen", "prefs", "sft")]
    with pytest.raises(DataError) as refused:
        find_files(str(root), "train")
    assert str(refused.value) == (
        f"data.path: {root} has several splits that 'train' may mean. Set data.split to one of: {', '.join(listed)}"
    )
    for name in listed:
        fixed = {"data.solutions": False, "data.path": str(root), "data.split": name}
        data = resolve("reverse-text-sft", overrides=fixed).config.data
        assert data is not None
        assert {path.name.partition("-0")[0] for path in find_files(data.path, data.split)} == {name}


def test_a_word_in_the_name_of_one_split_is_enough(tmp_path: Path) -> None:
    root = laid_out(tmp_path, "training.jsonl", "dev_v2.jsonl", "my-eval.jsonl")
    assert [found(root, split) for split in ("train", "validation", "test", "v2")] == [
        ["training.jsonl"], ["dev_v2.jsonl"], ["my-eval.jsonl"], ["dev_v2.jsonl"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "places"),
    [
        (["data/all/train-0.parquet", "data/a/train-0.parquet", "data/a/test-0.parquet"], ["data/a", "data/all"]),
        (["all/train/0.parquet", "all/test/0.parquet", "a/train/0.parquet", "a/test/0.parquet"], ["a", "all"]),
        (["en/v1/train.jsonl", "en/v2/train.jsonl", "fr/test.jsonl"], ["en/v1", "en/v2"]),
        (["train_a/train.jsonl", "train_b/train.jsonl"], ["train_a", "train_b"]),
        (["data/train-0.parquet", "data/train-1.parquet", "more/train-0.parquet"], ["data", "more"]),
        (["train.jsonl", "test.jsonl", "old/train.jsonl"], ["train.jsonl", "old"]),
        (["train-0.parquet", "train-1.parquet", "old/train.jsonl"], ["old"]),
        (["en/train-0.json", "en/train-1.json", "en/fr/train-0.json", "en/fr/train-1.json"], ["en/fr"]),
    ],
)
def test_a_split_of_several_configs_is_refused_with_what_to_name(
    tmp_path: Path, layout: list[str], places: list[str]
) -> None:
    root = laid_out(tmp_path, *layout)
    with pytest.raises(DataError, match="has several configs with a split 'train'") as refused:
        find_files(str(root), "train", "data.validation")
    *_, listed = str(refused.value).partition("Set data.validation.path to one of: ")
    assert listed.split(", ") == [str(root / place) for place in places]
    for each in listed.split(", "):
        assert all(path.is_relative_to(each) for path in find_files(each, "train"))


def test_a_name_that_no_split_has_by_custom_is_told_apart_too(tmp_path: Path) -> None:
    root = laid_out(tmp_path, "x/good/0.json", "x/bad/0.json", "y/good/0.json", "y/good/1.json", "y/0.json")
    assert found(root, "bad") == ["x/bad/0.json"]
    with pytest.raises(
        DataError, match=f"with a split 'good': x, y. Set data.path to one of: {root}/x/good, {root}/y$"
    ):
        find_files(str(root), "good")


def test_an_error_lists_the_first_of_very_many_configs(tmp_path: Path) -> None:
    root = laid_out(tmp_path, *(f"config-{number:03}/train.jsonl" for number in range(40)))
    with pytest.raises(DataError, match=r"config-000, .*config-011 and 28 more\. Set .*config-011 and 28 more$"):
        find_files(str(root), "train")


HASH = "a09b74b3ef9c3b56"


@pytest.mark.parametrize(
    ("layout", "split"),
    [
        (["train/0.jsonl", "train.jsonl"], "train"),
        (["data/train-0.parquet", "data/train-1.parquet"], "train"),
        ([f"data/train-00000-of-00002-{HASH}.parquet", f"data/train-00001-of-00002-{HASH}.parquet"], "train"),
        (["c4-train.00000-of-00002.json.gz", "c4-train.00001-of-00002.json.gz"], "train"),
        (["train_1.jsonl", "train_10.jsonl", "train_2.jsonl"], "train"),
        (["train_sft_1.jsonl", "train_sft_2.jsonl"], "train_sft"),
        (["train1.jsonl", "train2.jsonl"], "train"),
        (["train.part-01.json", "train.part-02.json"], "train"),
        (["00000-train.parquet", "00001-train.parquet"], "train"),
        (["train/algebra/1.json", "train/geometry/1.json"], "train"),
        (["train/algebra/train_1.json", "train/geometry/train_1.json"], "train"),
        (["train/part-0.snappy.parquet", "train/part-1.snappy.parquet"], "train"),
        (["good/0.parquet", "good/1.parquet"], "good"),
        (["good-00000-of-00002.parquet", "good-00001-of-00002.parquet"], "good"),
    ],
)
def test_numbers_count_the_files_of_a_split_and_directories_below_it_are_parts_of_it(
    tmp_path: Path, layout: list[str], split: str
) -> None:
    root = laid_out(tmp_path, *layout, "test.jsonl", "other/bad.jsonl", ".cache/train.jsonl")
    assert found(root, split) == layout


def test_a_number_with_a_point_may_be_another_version(tmp_path: Path) -> None:
    root = laid_out(tmp_path, "train-v1.1.json", "train-v2.0.json")
    with pytest.raises(DataError, match=r"Set data.split to one of: train-v1.1, train-v2.0$"):
        find_files(str(root), "train")
    assert found(root, "train-v2.0") == ["train-v2.0.json"]


README = """---
configs:
- config_name: extended
  data_files:
  - split: train
    path: extended/*
- config_name: {name}
  data_files:
  - split: train_1
    path: [b.jsonl, "[bc].jsonl"]
  - split: train_2
    path: c.jsonl
---
"""


def test_a_readme_says_which_files_of_a_directory_are_which(tmp_path: Path) -> None:
    root = laid_out(tmp_path, "a.jsonl", "b.jsonl", "c.jsonl", "extended/a.jsonl", "extended/b.jsonl")
    (root / "README.md").write_text(README.format(name="default"))
    assert found(root, "train_1") == ["b.jsonl", "c.jsonl"]
    with pytest.raises(DataError, match=r"that 'train' may mean. Set data.split to one of: train_1, train_2$"):
        find_files(str(root), "train")
    (root / "README.md").write_text(README.format(name="other").replace("train_1", "train"))
    with pytest.raises(DataError, match=r"several configs with a split 'train': extended, other. Set .*/extended$"):
        find_files(str(root), "train")
    (root / "README.md").write_text(README.format(name="other").replace("extended\n", "extended\n  default: true\n", 1))
    assert found(root, "train") == ["extended/a.jsonl", "extended/b.jsonl"]
    (root / "README.md").write_text("---\nconfigs:\n- data_files: /etc/*\n---\n")
    with pytest.raises(DataError, match=r"^data.path: the README names '/etc/\*', which lies outside of the data set"):
        find_files(str(root), "train")


def test_configs_with_the_same_files_have_no_directory_to_name(tmp_path: Path) -> None:
    root = laid_out(tmp_path, "a.jsonl", "b.jsonl")
    told = "---\nconfigs:\n- {config_name: x, data_files: '*.jsonl'}\n- {config_name: y, data_files: '*.jsonl'}\n---\n"
    (root / "README.md").write_text(told)
    with pytest.raises(
        DataError, match=r"with a split 'train': x, y. Put the files of one into a directory of their own"
    ):
        find_files(str(root), "train")


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
def test_the_readme_of_a_data_set_of_the_hub_is_fetched_with_it(tmp_path: Path) -> None:
    told = b"---\nconfigs:\n- {config_name: x, data_files: [{split: train, path: b.jsonl}]}\n---\n"
    with hub("someone/data", {"a.jsonl": b"{}", "b.jsonl": b"{}", "README.md": told}) as url:
        done = find_on_hub(url, tmp_path / "home", "someone/data", "train")
    assert [Path(each).name for each in done.stdout.splitlines()] == ["b.jsonl"], done.stderr


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
    train, validation = hold_out(np.arange(count), share, seed=1)
    assert len(validation) == held
    assert sorted([*train, *validation]) == list(range(count))


def test_which_examples_are_held_out_is_the_same_in_every_version() -> None:
    for problems in (np.arange(10), np.arange(10)[::-1]):
        assert list(hold_out(problems, 0.3, seed=7)[1]) == [6, 8, 9]


@pytest.mark.parametrize("seed", range(20))
def test_examples_of_one_problem_are_all_held_out_or_none(seed: int) -> None:
    problems = np.array([0] * 30 + [1, 1, 1, 2, 3, 3] * 5 + [*range(4, 44)])
    train, validation = hold_out(problems, 0.1, seed)
    assert not set(problems[train]) & set(problems[validation])
    assert sorted([*train, *validation]) == list(range(100))
    assert len(validation) == 10


@pytest.mark.parametrize(("problems", "held"), [([5, 5, 5, 9, 9], [3, 4]), ([1, 2, 2, 2], [0])])
def test_the_smallest_problem_is_held_out_where_none_fits_into_the_share(problems: list[int], held: list[int]) -> None:
    assert list(hold_out(np.array(problems), 0.01, seed=0)[1]) == held


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


def numbers_of(where: list[str]) -> list[int]:
    return [int(each.rpartition(":")[2]) - 1 for each in where]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
@pytest.mark.parametrize("form", ["messages", "prompt", "key", "pairs", "tokens"])
def test_lines_of_one_problem_are_on_one_side(tmp_path: Path, name: str, form: str) -> None:
    def line(number: int) -> dict[str, Any]:
        question, answer = f"what is {number // 4}?", f"it is {number}"
        asked = [{"role": "system", "content": "be brief"}, {"role": "user", "content": question}]
        said = {"role": "assistant", "content": answer}
        forms: dict[str, dict[str, Any]] = {
            "messages": {"messages": [*asked, said]},
            "prompt": {"prompt": question, "completion": answer},
            "key": {"messages": [{"role": "user", "content": f"{number}"}, said], "problem_key": question},
            "pairs": {"chosen": [*asked, said], "rejected": [*asked, said | {"content": "no"}]},
            "tokens": {"token_ids": [1, number], "loss_mask": [0, 1], "problem_key": question},
        }
        return forms[form]

    path = write(tmp_path / name, [line(number) for number in range(80)])
    more = {"preference__beta": 0.1} if form == "pairs" else {}
    dataset = opened(tmp_path, path, validation__share=0.1, **more)
    held = numbers_of([where for batch in dataset.validation_batches() for _, where in batch])
    trained = numbers_of([where for step in range(20) for _, where in dataset.batch(step)])
    assert len(held) == 8
    assert not {number // 4 for number in held} & {number // 4 for number in trained}
    assert {*held, *trained} == set(range(80))


def test_lines_without_a_prompt_are_problems_of_their_own(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"prompt": "", "completion": f"text {number}"} for number in range(20)])
    dataset = opened(tmp_path, path, validation__share=0.1)
    assert sum(len(batch) for batch in dataset.validation_batches()) == 2


def test_data_of_one_prompt_says_how_it_is_held_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"prompt": "a poem:", "completion": f"text {number}"} for number in range(20)])
    with pytest.raises(DataError, match=r"has one problem.* set data.validation.hold_out to 'lines'"):
        opened(tmp_path, path, validation__share=0.1)
    dataset = opened(tmp_path, path, validation__share=0.1, validation__hold_out="lines")
    assert sum(len(batch) for batch in dataset.validation_batches()) == 2


def test_a_run_of_before_there_was_a_choice_goes_on_holding_out_its_lines() -> None:
    stored = resolve("reverse-text-sft", overrides={"data.validation.share": 0.1}).config.model_dump(mode="json")
    assert RunConfig.stored(stored).data.validation.hold_out == "problems"  # type: ignore[union-attr]
    del stored["data"]["validation"]["hold_out"]
    assert RunConfig.stored(stored).data.validation.hold_out == "lines"  # type: ignore[union-attr]


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


def test_a_run_goes_on_with_the_files_that_it_began_with(tmp_path: Path) -> None:
    root, notes = laid_out(tmp_path / "set", "train-0.jsonl", "train-1.jsonl"), tmp_path / "notes"
    began = find_files(str(root), "train", notes=notes)
    laid_out(root, "train-2.jsonl")
    assert find_files(str(root), "train", notes=notes) == began
    assert find_files(str(root), "train", section="data.validation", notes=notes) != began
    assert len(find_files(str(root), "train")) == 3
