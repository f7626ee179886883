"""Train a few steps for every given way to spread them over the ranks; what comes out is left for a test to compare.

torchrun --nproc-per-node W -m tests.trainers.spread_steps MODEL DIRECTORY '{"name": [{"trainer.replicas": 2}], ...}'

A way is a list of parts. Each part is a trainer of its own that resumes from the checkpoint of the one before it, also
when that was another process; "until" says how many steps there are then, and is STEPS without.
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
from trainers.distributed.mesh import make_world, run_rank
from trainers.learner import Learner
from trainers.link import RunLink
from trainers.model.pipeline import join_stages
from trainers.objective.step import rl_objective
from trainers.packing import batch_sequences
from trainers.run_config import RunConfig
from trainers.storage.checkpoint import gather_model
from trainers.storage.durable import newest_step, step_directory, verify_directory

STEPS = 5


class FreshRun:
    """The part of a RunLink that a learner asks before its first step and when it saves."""

    choose = staticmethod(RunLink._broadcast_number)


def spread_steps(model: Path, directory: Path, name: str, options: dict[str, Any], until: int = STEPS) -> None:
    """Train up to step `until` on random batches, from the newest checkpoint under this name, and save one.

    Rank 0 writes weights, optimizer state and the metrics of all steps.
    """
    # Adam divides a gradient by its own size; with a large eps a rounding error near zero stays small.
    overrides = {"max_steps": STEPS, "optimizer.lr": 5e-3, "optimizer.eps": 1e-3, "trainer.seq_len": 160}
    overrides |= {"trainer.world_size": dist.get_world_size(), **options}
    config = RunConfig.model_validate(rl_config(model, **overrides))
    run_dir, written = directory / name, directory / f"{name}.json"
    checkpoints = []
    if (step := newest_step(run_dir / "checkpoints")) > 0:
        held = verify_directory(step_directory(run_dir / "checkpoints", step))
        checkpoints.append(wire.CheckpointRef(step=step, path=str(held.path), manifest_sha256=held.manifest_sha256))
    registration = wire.TrainerRegistration(run="r", epoch=1, config={}, run_dir=str(run_dir), checkpoints=checkpoints)
    world = make_world(config.trainer)
    learner = Learner(config, registration, cast(RunLink, FreshRun()), world)
    metrics = json.loads(written.read_text()) if learner.step else []
    while learner.step < until:
        sequences = batch_sequences(random_batch(learner.step), config.trainer.seq_len)
        metrics.append(learner.train_step(sequences, rl_objective(config)))
    learner._write_checkpoint()
    held = gather_model(learner.model) | optimizer_state(learner.model, learner._optimizer)
    tensors = join_stages(held, world)
    if world.is_main:
        save_file({key: tensor.clone() for key, tensor in tensors.items()}, directory / f"{name}.safetensors")
        written.write_text(json.dumps(metrics))
    dist.barrier()


def main() -> None:
    """Run every way named on the command line."""
    torch.set_num_threads(1)
    model, directory, ways = sys.argv[1:]
    for name, parts in json.loads(ways).items():
        for options in parts:
            until = options.pop("until", STEPS)
            spread_steps(Path(model), Path(directory), name, options, until)


if __name__ == "__main__":
    run_rank(main)
