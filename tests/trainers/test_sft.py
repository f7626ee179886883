"""SFT trainers: as they are run, and what their ranks come to."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from tests.lanes import long_lane
from tests.trainers.control_plane import FakeControlPlane, serving
from tests.trainers.crew import Crew, CrewError
from tests.trainers.support import rl_config, start_trainer, wandb_file, write_conversations, write_pairs
from trainers.storage.durable import verify_directory
from trainers.wire import TIME_OVER_VARIABLE

pytestmark = [pytest.mark.slow]


def make_plane(directory: Path, model: Path, **overrides: Any) -> FakeControlPlane:
    write_conversations(directory / "data.jsonl")
    data = {"path": str(directory / "data.jsonl"), "batch_size": 16}
    config = rl_config(model, kind="sft", data=data | overrides.pop("data", {}), **overrides)
    return FakeControlPlane(config, directory)


def as_parquet(path: Path) -> Path:
    """The lines of a JSONL file as a Parquet file of several row groups beside it."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    pq.write_table(pa.Table.from_pylist(rows), path.with_suffix(".parquet"), row_group_size=20)
    return path.with_suffix(".parquet")


def losses(plane: FakeControlPlane, key: str = "loss/mean") -> dict[int, float]:
    return {step: ack.metrics[key] for step, ack in plane.acks.items() if key in ack.metrics}


def test_training_lowers_the_loss_and_announces_weights_that_are_evaluated_and_the_last(
    crew: Crew, model_dir: Path, tmp_path: Path
) -> None:
    plan = {"every": 5, "problems": 1}
    environments = [{"name": "reverse_text"}]
    plane = make_plane(
        tmp_path, model_dir, max_steps=12, optimizer__lr=3e-3, evaluation=plan, environments=environments
    )
    with serving(plane) as url:
        crew.train("sft", url, 2)
    assert losses(plane)[0] == pytest.approx(5.55, abs=0.2)  # log 259: it knows nothing
    assert losses(plane)[11] < 4.5
    assert plane.acks[0].batch_sha256 is None
    assert plane.acks[0].metrics["batch/dropped"] == plane.acks[0].metrics["batch/cut"] == 0
    assert not losses(plane, "loss/validation")
    assert list(plane.versions) == [5, 10, 12]
    verify_directory(Path(plane.versions[12].path), plane.versions[12].manifest_sha256)
    assert plane.finished


@long_lane("formats are read alike in trainers/data, and two ranks learn in the test above")
def test_parquet_trains_like_jsonl_and_held_out_loss_falls_alike_on_any_number_of_ranks(
    crew: Crew, model_dir: Path, tmp_path: Path
) -> None:
    data = {"validation": {"share": 0.2, "every": 2}}
    overrides = {"max_steps": 5, "optimizer__lr": 3e-3}
    planes = []
    for world_size in (1, 2):
        directory = tmp_path / str(world_size)
        directory.mkdir()
        plane = make_plane(directory, model_dir, data=data, **overrides)
        if world_size == 2:
            plane.config["data"]["path"] = str(as_parquet(directory / "data.jsonl"))
        with serving(plane) as url:
            crew.train("sft", url, world_size)
        planes.append(plane)
    one, two = planes
    assert losses(two) == pytest.approx(losses(one), rel=1e-3)
    assert list(losses(one, "loss/validation")) == [1, 3, 4]
    assert losses(two, "loss/validation") == pytest.approx(losses(one, "loss/validation"), rel=1e-3)
    assert losses(one, "loss/validation")[4] < losses(one, "loss/validation")[1]


def test_a_killed_trainer_goes_on_with_the_data_it_had_not_seen(crew: Crew, model_dir: Path, tmp_path: Path) -> None:
    data = {"validation": {"share": 0.2, "every": 3}, "batch_size": 12}
    overrides = {"data": data, "max_steps": 6, "trainer__checkpoint_every": 2}
    whole = make_plane(tmp_path, model_dir, **overrides)
    with serving(whole) as url:
        crew.train("sft", url)
    (tmp_path / "second").mkdir()
    killed = make_plane(tmp_path / "second", model_dir, **overrides)
    killed.config["data"]["path"] = str(as_parquet(tmp_path / "second" / "data.jsonl"))
    with serving(killed) as url:
        with start_trainer("sft", url) as torchrun:
            killed.wait_until(lambda: 2 in killed.checkpoints)
            torchrun.kill()
        crew.train("sft", url)
    assert losses(killed) == losses(whole)
    assert losses(killed, "loss/validation") == losses(whole, "loss/validation")
    assert list(killed.versions) == [6]
    left = {path.name for path in (tmp_path / "second").iterdir()}
    assert left == {"data.jsonl", "data.parquet", "data", "weights", "checkpoints"}


@contextmanager
def serving_pairs(directory: Path, model_dir: Path) -> Iterator[tuple[FakeControlPlane, str]]:
    """A control plane with eight steps of preferences to learn."""
    data = {"preference": {"beta": 0.5}, "validation": {"share": 0.1, "every": 4}, "batch_size": 8}
    overrides = {"data": data, "max_steps": 8, "optimizer__lr": 1e-3, "trainer__checkpoint_every": 4}
    directory.mkdir()
    plane = make_plane(directory, model_dir, **overrides)
    write_pairs(directory / "data.jsonl")
    with serving(plane) as url:
        yield plane, url


@pytest.fixture(scope="module")
def one(crew: Crew, model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> FakeControlPlane:
    """What one rank has learned from preferences."""
    with serving_pairs(tmp_path_factory.mktemp("preferences") / "one", model_dir) as (plane, url):
        crew.train("sft", url, 1)
    return plane


def test_preferences_are_learned(one: FakeControlPlane) -> None:
    first, last = one.acks[0].metrics, one.acks[7].metrics
    assert first["loss/mean"] == pytest.approx(0.6931, abs=1e-4)  # log 2: the policy is the reference
    assert first["preference/margin/mean"] == pytest.approx(0, abs=1e-4)
    assert last["loss/mean"] < 0.5
    assert last["preference/accuracy/mean"] > 0.8
    assert last["preference/margin/mean"] == pytest.approx(
        last["preference/chosen_reward/mean"] - last["preference/rejected_reward/mean"], abs=1e-6
    )
    assert losses(one, "loss/validation")[7] < losses(one, "loss/validation")[3] < 0.69


@long_lane("ranks are held against one rank in test_parallelism, and kills are survived in the test of examples")
def test_preferences_are_learned_alike_on_two_ranks_and_after_a_kill(
    crew: Crew, model_dir: Path, tmp_path: Path, one: FakeControlPlane
) -> None:
    with serving_pairs(tmp_path / "two", model_dir) as (two, url):
        with start_trainer("sft", url, 2) as torchrun:
            two.wait_until(lambda: 4 in two.checkpoints)
            torchrun.kill()
        assert not two.finished
        crew.train("sft", url, 2)
    assert losses(two) == pytest.approx(losses(one), rel=2e-3)
    assert losses(two, "loss/validation") == pytest.approx(losses(one, "loss/validation"), rel=2e-3)
    theirs = load_file(Path(two.versions[8].path) / "model.safetensors")
    for name, tensor in load_file(Path(one.versions[8].path) / "model.safetensors").items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-2, atol=2e-4, msg=name)


def test_a_bad_line_fails_the_trainer_by_name_and_for_good(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLYARD_FAULT_FILE", str(tmp_path / "fault.json"))
    plane = make_plane(tmp_path, model_dir)
    with (tmp_path / "data.jsonl").open("a") as file:
        file.write('{"messages": [{"role": "user", "content": "x"}]}\n')
    with serving(plane) as url, start_trainer("sft", url) as torchrun:
        output, _ = torchrun.communicate(timeout=240)
    assert torchrun.returncode != 0
    fault = f"{tmp_path}/data.jsonl:65: needs a message of assistant"
    assert f"DataError: {fault}" in output
    assert fault in json.loads((tmp_path / "fault.json").read_text())["message"]


@pytest.mark.parametrize("data", [{}, {"preference": {"beta": 0.5}}])
def test_a_step_whose_examples_are_all_too_long_ends_the_trainer_by_the_key(
    crew: Crew, model_dir: Path, tmp_path: Path, data: dict[str, Any]
) -> None:
    plane = make_plane(tmp_path, model_dir, data={"too_long": "drop", **data}, trainer__seq_len=17)
    if data:
        write_pairs(tmp_path / "data.jsonl")
    with serving(plane) as url, pytest.raises(CrewError, match=r"trainer\.seq_len: of the 16 examples of step 0"):
        crew.train("sft", url, 2)
    assert (plane.versions, plane.ack_log) == ({}, [])


def make_validated_plane(directory: Path, model: Path, lengths: list[int]) -> FakeControlPlane:
    """With held-out examples of so many characters, of which those with more than 128 tokens are dropped."""
    lines = [json.dumps({"prompt": "x" * length, "completion": "y"}) for length in lengths]
    (directory / "held.jsonl").write_text("\n".join(lines))
    held = {"path": str(directory / "held.jsonl"), "every": 1}
    return make_plane(directory, model, data={"too_long": "drop", "validation": held}, max_steps=1)


def test_held_out_examples_that_are_too_long_are_counted(crew: Crew, model_dir: Path, tmp_path: Path) -> None:
    plane = make_validated_plane(tmp_path, model_dir, [20, 500, 30])
    with serving(plane) as url:
        crew.train("sft", url)
    metrics = plane.acks[0].metrics
    assert (metrics["batch/dropped/validation"], metrics["batch/dropped"]) == (1, 0)
    assert metrics["loss/validation"] > 0


def test_held_out_examples_that_are_all_too_long_are_no_perfect_result(
    crew: Crew, model_dir: Path, tmp_path: Path
) -> None:
    plane = make_validated_plane(tmp_path, model_dir, [500, 600])
    with serving(plane) as url, pytest.raises(CrewError, match=r"trainer\.seq_len: of the held-out examples none"):
        crew.train("sft", url, 2)
    assert plane.ack_log == []


def test_a_trainer_whose_time_is_over_saves_after_its_step(crew: Crew, model_dir: Path, tmp_path: Path) -> None:
    plane = make_plane(tmp_path, model_dir, max_steps=2)
    with serving(plane) as url:
        crew.train("sft", url, 2, **{TIME_OVER_VARIABLE: str(tmp_path)})
        assert (plane.ack_log, list(plane.checkpoints), list(plane.versions)) == ([0], [1], [])
        crew.train("sft", url, 2, **{TIME_OVER_VARIABLE: str(tmp_path)})
    assert (plane.ack_log, list(plane.versions), plane.finished) == ([0, 1], [2], True), "the last step ends it"


def test_a_run_that_is_over_ends_every_rank_quietly_and_keeps_what_it_measured(
    crew: Crew, model_dir: Path, tmp_path: Path
) -> None:
    plane = make_plane(tmp_path, model_dir, max_steps=40, tracking__wandb=True)
    plane.over_at_step = 2
    with serving(plane) as url:
        crew.train("sft", url, ranks=2)
    assert (plane.ack_log, plane.versions, plane.finished) == ([0, 1], {}, False)
    assert b"loss/mean" in wandb_file(tmp_path)
