"""An objective as it is trained: by one and by two ranks, which must come to the same weights."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.trainers.control_plane import FakeControlPlane, serving
from tests.trainers.crew import Crew
from tests.trainers.support import random_batch, rl_config
from trainers.wire import TrainingBatch, TrainingRollout

pytestmark = [pytest.mark.slow]

STEPS = 5
EVERYTHING: dict[str, Any] = {
    "max_steps": STEPS,
    "optimizer__lr": 1e-3,
    # Above the noise of a gradient: Adam divides by its root, so rounding would become a whole step.
    "optimizer__eps": 1e-3,
    "trainer__checkpoint_every": STEPS,
    "algorithm__loss": {"type": "gspo_token", "clip_low": 0.3, "clip_high": 0.3, "normaliser": "group"},
    "algorithm__corrections": {"geometric_low": 0.8, "max_divergence": 3.0},
    "algorithm__terms": {"echo": 0.1, "reference_kl": 0.05, "distillation": 0.1},
}
"""A ratio of whole rollouts, masks of whole rollouts, groups as denominators, and every term."""


def batch(step: int) -> TrainingBatch:
    """Seven rollouts of two turns with reference logprobs; every second one brings advantages per token."""
    plain = random_batch(step, rollouts=7)
    rng = np.random.default_rng(1000 + step)
    return msgspec.structs.replace(
        plain, rollouts=[_enrich(rollout, rng, at % 2 == 1) for at, rollout in enumerate(plain.rollouts)]
    )


def _enrich(rollout: TrainingRollout, rng: np.random.Generator, has_advantages: bool) -> TrainingRollout:
    mask = np.frombuffer(rollout.loss_mask, np.uint8).copy()
    mask[14:17] = 0  # the environment speaks
    ref = np.where(mask, -5.5 + rng.normal(0, 0.2, len(mask)), 0).astype("<f4")
    advantages = rng.normal(size=len(mask)).astype("<f4")
    return msgspec.structs.replace(
        rollout,
        loss_mask=mask.tobytes(),
        ref_logprobs=ref.tobytes(),
        advantages=advantages.tobytes() if has_advantages else None,
    )


def trained(crew: Crew, directory: Path, model: Path, world_size: int) -> FakeControlPlane:
    plane = FakeControlPlane(rl_config(model, **EVERYTHING), directory)
    plane.make_batch = batch
    with serving(plane) as url:
        crew.train("rl", url, world_size)
    return plane


def test_one_and_two_ranks_come_to_the_same_loss_and_weights(crew: Crew, model_dir: Path, tmp_path: Path) -> None:
    one, two = (trained(crew, tmp_path / str(size), model_dir, size) for size in (1, 2))
    for step in range(STEPS):
        ours, theirs = one.acks[step].metrics, two.acks[step].metrics
        assert ours.keys() == theirs.keys()
        for key in [key for key in ours if not key.startswith(("time/", "perf/"))]:
            assert theirs[key] == pytest.approx(ours[key], rel=1e-5, abs=1e-5), (step, key)
    start = load_file(model_dir / "model.safetensors")
    ends = [load_file(Path(plane.versions[STEPS].path) / "model.safetensors") for plane in (one, two)]
    moved = max((tensor - start[name]).abs().max().item() for name, tensor in ends[0].items() if name in start)
    assert moved > 1e-4, "weights that did not move prove nothing"
    for name, tensor in ends[0].items():
        torch.testing.assert_close(ends[1][name], tensor, atol=1e-5, rtol=0)
