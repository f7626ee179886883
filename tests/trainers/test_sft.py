"""SFT trainers as they are run."""

from pathlib import Path
from typing import Any

import pytest

from tests.trainers.control_plane import FakeControlPlane, serving
from tests.trainers.support import rl_config, run_trainer, start_trainer, write_conversations
from trainers.durable import verify_directory

pytestmark = pytest.mark.slow


def make_plane(directory: Path, model: Path, **overrides: Any) -> FakeControlPlane:
    write_conversations(directory / "data.jsonl")
    data = {"path": str(directory / "data.jsonl"), "batch_size": 16}
    return FakeControlPlane(rl_config(model, kind="sft", data=data, **overrides), directory)


def test_training_lowers_the_loss_and_announces_the_last_weights(model_dir: Path, tmp_path: Path) -> None:
    plane = make_plane(tmp_path, model_dir, max_steps=12, optimizer__lr=3e-3)
    with serving(plane) as url:
        assert run_trainer("sft", url, world_size=2) == 0
    losses = [plane.acks[step].metrics["loss/mean"] for step in range(12)]
    assert losses[0] == pytest.approx(5.55, abs=0.2)  # log 259: it knows nothing
    assert losses[-1] < 4.5
    assert plane.acks[0].batch_sha256 is None
    assert list(plane.versions) == [12]
    verify_directory(Path(plane.versions[12].path), plane.versions[12].manifest_sha256)
    assert plane.finished


def test_a_killed_trainer_goes_on_with_the_data_it_had_not_seen(model_dir: Path, tmp_path: Path) -> None:
    whole = make_plane(tmp_path, model_dir, max_steps=6, trainer__checkpoint_every=2)
    with serving(whole) as url:
        assert run_trainer("sft", url) == 0
    (tmp_path / "second").mkdir()
    killed = make_plane(tmp_path / "second", model_dir, max_steps=6, trainer__checkpoint_every=2)
    with serving(killed) as url:
        with start_trainer("sft", url) as torchrun:
            killed.wait_until(lambda: 2 in killed.checkpoints)
            torchrun.kill()
        assert run_trainer("sft", url) == 0
    for step in range(6):
        assert killed.acks[step].metrics["loss/mean"] == whole.acks[step].metrics["loss/mean"]
    assert list(killed.versions) == [6]


def test_a_run_that_is_over_ends_every_rank_quietly(model_dir: Path, tmp_path: Path) -> None:
    plane = make_plane(tmp_path, model_dir, max_steps=40)
    plane.over_at_step = 2
    with serving(plane) as url:
        assert run_trainer("sft", url, world_size=2) == 0
    assert (plane.ack_log, plane.versions, plane.finished) == ([0, 1], {}, False)
