"""Train a few steps, spread over the ranks in some way; what comes out is left for a test to compare."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from safetensors.torch import save_file

from tests.trainers.support import gather_model, newest_step, optimizer_state, random_batch, rl_config
from trainers import wire
from trainers.client import ControlPlane
from trainers.distributed.mesh import make_world, run_rank
from trainers.distributed.spread import SpreadTensors
from trainers.learner import Learner
from trainers.link import RunLink
from trainers.objective.step import rl_objective
from trainers.packing import batch_sequences
from trainers.run_config import RunConfig
from trainers.storage.durable import step_directory, verify_directory

STEPS = 4


class FreshRun(RunLink):
    """A run without a control plane: nobody is told anything."""

    def __init__(self) -> None:
        """Connect to nothing."""

    def send(self, request: Callable[[ControlPlane], object]) -> None:
        """Say nothing."""


def spread_steps(model: str, into: str, options: dict[str, Any], until: int) -> None:
    """Train up to step `until` on random batches, from the newest checkpoint below `into`, and save one there.

    Rank 0 writes weights, optimizer state and the metrics of all steps beside it.
    """
    # Adam divides a gradient by its own size; with a large eps a rounding error near zero stays small.
    overrides = {"max_steps": STEPS, "optimizer.lr": 5e-3, "optimizer.eps": 1e-3, "trainer.seq_len": 160}
    overrides |= {"trainer.world_size": dist.get_world_size(), **options}
    config = RunConfig.model_validate(rl_config(Path(model), **overrides))
    run_dir = Path(into)
    written = run_dir.with_suffix(".json")
    checkpoints = []
    if (step := newest_step(run_dir / "checkpoints")) > 0:
        held = verify_directory(step_directory(run_dir / "checkpoints", step))
        checkpoints.append(wire.CheckpointRef(step=step, path=str(held.path), manifest_sha256=held.manifest_sha256))
    registration = wire.TrainerRegistration(run="r", epoch=1, config={}, run_dir=str(run_dir), checkpoints=checkpoints)
    world = make_world(config.trainer)
    learner = Learner(config, registration, FreshRun(), world)
    metrics = json.loads(written.read_text()) if learner.step else []
    while learner.step < until:
        sequences = batch_sequences(random_batch(learner.step), config.trainer.seq_len)
        metrics.append(learner.train_step(sequences, rl_objective(config)))
    learner.checkpoint()
    held = gather_model(learner.model) | optimizer_state(learner.model, learner.optimizer)
    tensors = SpreadTensors(held, world).whole()
    if world.is_main:
        save_file({key: tensor.clone() for key, tensor in tensors.items()}, run_dir.with_suffix(".safetensors"))
        written.write_text(json.dumps(metrics))
    dist.barrier()


def main() -> None:
    """`MODEL DIRECTORY {"name": {options}, ...}` under torchrun: every way in turn, each into a name of its own."""
    model, directory, ways = sys.argv[1:]
    for name, options in json.loads(ways).items():
        spread_steps(model, f"{directory}/{name}", options, STEPS)


if __name__ == "__main__":
    run_rank(main)
