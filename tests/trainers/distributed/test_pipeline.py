"""Stages of a pipeline as they are run: what they publish, save and measure is what one process does.

That they train the same weights is in test_parallelism.py, which parts of a model a stage keeps in test_sharding.py.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.trainers.control_plane import FakeControlPlane, serving
from tests.trainers.crew import Crew
from tests.trainers.support import random_batch, rl_config, write_pairs

pytestmark = [pytest.mark.slow]

STAGES = {"trainer__world_size": 2, "trainer__pipeline_parallel": 2, "trainer__seq_len": 64}


def assert_same_weights(ours: FakeControlPlane, theirs: FakeControlPlane, version: int) -> None:
    found, expected = (load_file(Path(plane.versions[version].path) / "model.safetensors") for plane in (ours, theirs))
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-5, rtol=1e-3, msg=name)


@pytest.mark.parametrize("tied", [True, False], ids=["tied embeddings", "an output layer of its own"])
def test_two_stages_publish_what_one_process_does_and_one_process_goes_on_from_their_checkpoint(
    crew: Crew, model_dir: Path, llama_dir: Path, tmp_path: Path, tied: bool
) -> None:
    model, planes = model_dir if tied else llama_dir, []
    for name, stages in (("alone", {}), ("stages", STAGES)):
        config = rl_config(model, max_steps=3, optimizer__eps=1e-5, trainer__checkpoint_every=2, **stages)
        plane = FakeControlPlane(config, tmp_path / name)
        plane.make_batch = random_batch
        with serving(plane) as url:
            if stages:
                plane.over_at_step = 2
                crew.train("rl", url, ranks=2)
                assert len(list(Path(plane.checkpoints[2].path).glob("*.safetensors"))) == 2
                plane.over_at_step = None
                plane.config["trainer"] |= {"world_size": 1, "pipeline_parallel": 1}
            crew.train("rl", url)
        planes.append(plane)
    alone, staged = planes
    assert staged.ack_log == [0, 1, 2]
    for step, ack in alone.acks.items():
        for key in ("loss/mean", "entropy/mean", "mismatch_kl/mean", "clip_fraction/mean", "optim/grad_norm"):
            assert staged.acks[step].metrics[key] == pytest.approx(ack.metrics[key], rel=1e-3, abs=1e-5), (step, key)
    assert staged.acks[0].metrics.keys() == alone.acks[0].metrics.keys()
    for version in (1, 2, 3):
        assert_same_weights(staged, alone, version)
    loaded = AutoModelForCausalLM.from_pretrained(staged.versions[2].path)
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied


def test_two_stages_score_and_prefer_as_one_process_does(crew: Crew, model_dir: Path, tmp_path: Path) -> None:
    data: dict[str, Any] = {"preference": {"beta": 0.5}, "validation": {"share": 0.1, "every": 2}, "batch_size": 8}
    data["path"] = str(tmp_path / "data.jsonl")
    write_pairs(Path(data["path"]))
    planes = []
    for world_size, stages in ((1, {"trainer__seq_len": 64}), (2, STAGES)):
        config = rl_config(model_dir, kind="sft", data=data, max_steps=2, optimizer__eps=1e-5, **stages)
        plane = FakeControlPlane(config, tmp_path / str(world_size))
        with serving(plane) as url:
            crew.train("sft", url, world_size)
        planes.append(plane)
    alone, staged = planes
    for step, ack in alone.acks.items():
        for key in ("loss/mean", "preference/margin/mean", "optim/grad_norm"):
            assert staged.acks[step].metrics[key] == pytest.approx(ack.metrics[key], rel=1e-3, abs=1e-5), (step, key)
    for key in ("loss/validation", "preference/margin/validation"):
        assert staged.acks[1].metrics[key] == pytest.approx(alone.acks[1].metrics[key], rel=1e-3, abs=1e-5)
    assert_same_weights(staged, alone, 2)
