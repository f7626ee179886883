"""The environments' own solutions as training data."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from environments.__main__ import main
from trainers.config import RunConfig, resolve
from trainers.data import solutions
from trainers.data.dataset import open_dataset
from trainers.errors import DataError
from trainers.run_config import EnvironmentRef

ENVIRONMENT = {"name": "reverse_text", "args": {"min_length": 3, "max_length": 6, "words": 1}}


def config(**overrides: Any) -> RunConfig:
    values = {"max_steps": 3, "optimizer.warmup_steps": 0, "data.batch_size": 4}
    return resolve(
        "reverse-text-sft", overrides=values | {k.replace("__", "."): v for k, v in overrides.items()}
    ).config


def test_a_run_trains_on_the_solutions_that_the_command_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = open_dataset(config(), tmp_path)
    words = ["reverse_text", "--args", json.dumps(ENVIRONMENT["args"]), "--n", "12", "--echo", "0.65"]
    main(["solutions", *words])
    assert (tmp_path / "solutions.jsonl").read_text() == capsys.readouterr().out
    trained = [line for step in range(3) for line, _ in dataset.batch(step)]
    assert sorted(trained) == sorted((tmp_path / "solutions.jsonl").read_bytes().splitlines(keepends=True))


def test_a_path_wins_so_that_a_preset_can_be_given_another_file(tmp_path: Path) -> None:
    lines = [json.dumps({"prompt": "?", "completion": answer}) for answer in ("one", "two")]
    (tmp_path / "own.jsonl").write_text("\n".join(lines))
    dataset = open_dataset(config(data__path=str(tmp_path / "own.jsonl"), data__batch_size=2), tmp_path / "run")
    assert sorted(json.loads(line)["completion"] for line, _ in dataset.batch(0)) == ["one", "two"]


def test_every_attempt_sees_the_same_lines(tmp_path: Path) -> None:
    one, other = open_dataset(config(), tmp_path / "one"), open_dataset(config(), tmp_path / "other")
    again = open_dataset(config(), tmp_path / "one")
    lines = [[line for line, _ in each.batch(1)] for each in (one, other, again)]
    assert lines[0] == lines[1] == lines[2]


def test_ranks_of_two_nodes_that_write_at_a_time_have_the_same_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = solutions.write_solutions(config(), tmp_path / "alone").read_text()
    solved = solutions.solved

    def interrupted(*args: Any, **options: Any) -> Iterator[Any]:
        lines = iter(solved(*args, **options))
        yield next(lines)
        monkeypatch.setattr(solutions, "solved", solved)
        solutions.write_solutions(config(), tmp_path / "shared")  # with the same process id, as in another namespace
        yield from lines

    monkeypatch.setattr(solutions, "solved", interrupted)
    assert solutions.write_solutions(config(), tmp_path / "shared").read_text() == alone
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["solutions.jsonl"]


def test_the_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    had_name: list[bool] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        had_name.append((tmp_path / "solutions.jsonl").exists())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    solutions.write_solutions(config(), tmp_path)
    assert had_name == [False, True], "the file, then the directory"


def test_environments_take_turns(tmp_path: Path) -> None:
    shorter = {"name": "reverse_text", "args": {"min_length": 2, "max_length": 2, "words": 1}}
    open_dataset(config(environments=[ENVIRONMENT, shorter], data__echo=0.0), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "solutions.jsonl").read_text().splitlines()]
    lengths = [len(line["messages"][-1]["content"]) for line in lines]
    assert len(lines) == 12
    assert all(length == 2 for length in lengths[1::2])
    assert all(length > 2 for length in lengths[::2])


def test_an_environment_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.solutions: .*nonsuch"):
        open_dataset(config().model_copy(update={"environments": [EnvironmentRef(name="nonsuch")]}), tmp_path)
    assert not any(path.name.startswith("solutions") for path in tmp_path.iterdir())
