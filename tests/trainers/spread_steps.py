"""Train a few steps for every given way to spread them over the ranks; what comes out is left for a test to compare.

torchrun --nproc-per-node W -m tests.trainers.spread_steps MODEL DIRECTORY '{"name": {"trainer.replicas": 2}, ...}'
"""

import json
import sys
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from tests.trainers.support import optimizer_state, random_batch, rl_config
from trainers import wire
from trainers.checkpoint import gather_model
from trainers.learner import Learner
from trainers.link import RunLink
from trainers.objective import rl_objective
from trainers.packing import batch_sequences
from trainers.parallel import make_world, run_rank
from trainers.run_config import RunConfig

STEPS = 5


class FreshRun:
    """The part of a RunLink that a learner asks before its first step."""

    def choose(self, number: int) -> int:
        return number


def spread_steps(model: Path, directory: Path, name: str, options: dict[str, Any]) -> None:
    """Train STEPS steps on random batches; rank 0 writes weights, optimizer state and metrics."""
    # Adam divides a gradient by its own size; with a large eps a rounding error near zero stays small.
    overrides = {"max_steps": STEPS, "optimizer.lr": 5e-3, "optimizer.eps": 1e-3, "trainer.seq_len": 160}
    overrides |= {"trainer.world_size": dist.get_world_size(), **options}
    config = RunConfig.model_validate(rl_config(model, **overrides))
    registration = wire.Registration(run="r", epoch=1, config={}, run_dir=str(directory), checkpoints=[])
    world = make_world(config.trainer)
    learner = Learner(config, registration, cast(RunLink, FreshRun()), world)
    metrics = []
    for step in range(STEPS):
        sequences = batch_sequences(random_batch(step), config.trainer.seq_len)
        metrics.append(learner.train_step(sequences, rl_objective(config)))
    tensors = gather_model(learner.model) | optimizer_state(learner.model, learner._optimizer)
    if world.is_main:
        save_file({key: tensor.clone() for key, tensor in tensors.items()}, directory / f"{name}.safetensors")
        (directory / f"{name}.json").write_text(json.dumps(metrics))


def main() -> None:
    """Run every way named on the command line."""
    torch.set_num_threads(1)
    model, directory, ways = sys.argv[1:]
    for name, options in json.loads(ways).items():
        spread_steps(Path(model), Path(directory), name, options)


if __name__ == "__main__":
    run_rank(main)
