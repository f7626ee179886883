"""A checkpoint's round trip on the device: train, write, load into a fresh trainer, compare every bit."""

import shutil
import time

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from benchmarks.gpu.setting import finish, model_in, options, sole_rank, synchronise
from trainers.distributed.mesh import World
from trainers.model.policy import load_policy, score_tokens
from trainers.optimizers.build import build_optimizer, optimizer_step
from trainers.packing import micro_batch, training_sequence
from trainers.run_config import ModelConfig, OptimizerConfig
from trainers.storage.checkpoint import load_checkpoint, trained_tensors, write_checkpoint


def train(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, world: World, tokens: int, steps: int, lr: float = 1e-3
) -> None:
    """Take some steps on random tokens; large ones, so that weights differ visibly."""
    for step in range(steps):
        ids = np.random.default_rng(step).integers(0, 256, tokens)
        batch = micro_batch([training_sequence(ids, np.ones(tokens), tokens)]).to(world.device)
        (-score_tokens(model, batch, 1.0).logprobs_K.mean()).backward()
        optimizer_step(model, optimizer, lr=lr, max_grad_norm=1.0)


def held(model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Weights and moments as they lie on the device."""
    moments = {
        f"{moment}/{name}": value
        for name, parameter in model.named_parameters()
        for moment, value in optimizer.state[parameter].items()
    }
    tensors = trained_tensors(model) | moments
    return {name: value.to_local() if isinstance(value, DTensor) else value for name, value in tensors.items()}


def main() -> None:
    asked = options()
    world = sole_rank(asked.device)
    config = ModelConfig(path=str(model_in(asked.work, asked.size)), dtype=asked.dtype)
    directory = asked.work / "checkpoint"
    directory.mkdir()
    first = load_policy(config, world)
    optimizer = build_optimizer(first, OptimizerConfig())
    train(first, optimizer, world, asked.size.tokens // 8, 2)
    synchronise(world.device)
    begin = time.perf_counter()
    write_checkpoint(directory, 2, first, optimizer)
    write_s = time.perf_counter() - begin
    second = load_policy(config, world)
    again = build_optimizer(second, OptimizerConfig())
    begin = time.perf_counter()
    load_checkpoint(directory, second, again)
    synchronise(world.device)
    load_s = time.perf_counter() - begin
    before, after = held(first, optimizer), held(second, again)
    different = [name for name in before if name not in after or not torch.equal(before[name], after[name])]
    size_bytes = sum(path.stat().st_size for path in directory.iterdir())
    shutil.rmtree(directory)
    figures = {"tensors": len(before), "gib": size_bytes / 2**30, "write_s": write_s, "load_s": load_s}
    fault = f"{len(different)} tensors differ, {different[0]} first" if different else ""
    finish(figures, fault or ("" if before.keys() == after.keys() else "what came back has other names"))


if __name__ == "__main__":
    main()
