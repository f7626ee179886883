"""Rollyard's side: the trainer's own steps on the batches of a directory, with nothing to ask and nothing to publish.

    torchrun --standalone --nproc-per-node W -m benchmarks.trainer_load.ours DIRECTORY [key=value ...]

What `python -m trainers.rl` does between the arrival of a batch and the publication of weights is what is measured:
decode the batch, pack, forward, backward, optimizer. The last line is one JSON object of figures, the one before it the
seconds of the steps.
"""

import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from trainers import wire
from trainers.config import resolve
from trainers.distributed.mesh import make_world, run_rank
from trainers.learner import Learner
from trainers.link import RunLink
from trainers.objective.step import SUPERVISED, rl_objective
from trainers.packing import batch_sequences, count_trained
from trainers.run_config import RunConfig


class FreshRun(RunLink):
    """A run without a control plane."""

    def __init__(self) -> None:
        """Connect to nothing."""


def run_config(directory: Path, work: dict[str, Any], overrides: Sequence[str]) -> RunConfig:
    """The config of a run that trains on such batches; `overrides` come last."""
    rollouts = [rollout for step in work["steps"] for rollout in step]
    longest = max(len(rollout["prompt"]) + len(rollout["completion"]) for rollout in rollouts)
    completion = max(len(rollout["completion"]) for rollout in rollouts)
    seq_len = max(2048, longest)
    chosen = {
        "max_steps": len(work["steps"]),
        "model": {"path": str(directory / "model"), "dtype": work["dtype"]},
        "environments": [{"name": "reverse_text"}],
        "sampling": {"max_tokens": completion, "group_size": work["group_size"]},
        "inference": {"max_model_len": completion + seq_len},
        "batch": {"batch_size": len(work["steps"][0])},
        "algorithm": {"loss": {"type": "dr_grpo", "normaliser": "token"}, "ratio_against": "old"},
        "optimizer": {"lr": work["lr"]},
        "trainer": {"seq_len": seq_len, "device": work["device"]},
    }
    return resolve(inline=chosen, overrides=overrides).config


def training_batch(step: int, rollouts: Sequence[dict[str, Any]]) -> bytes:
    """A batch as the control plane sends it."""
    return msgspec.msgpack.encode(
        wire.TrainingBatch(
            run="benchmark",
            step=step,
            temperature=1.0,
            rollouts=[_training_rollout(index, rollout) for index, rollout in enumerate(rollouts)],
        )
    )


def measure(directory: Path, overrides: Sequence[str]) -> tuple[dict[str, float], list[float], bool]:
    """The figures, the seconds of every step, and whether this rank is the one that says them."""
    work = json.loads((directory / "work.json").read_text())
    config = run_config(directory, work, overrides)
    bodies = [training_batch(step, rollouts) for step, rollouts in enumerate(work["steps"])]
    world = make_world(config.trainer)
    registration = wire.TrainerRegistration(run="benchmark", epoch=1, config={}, run_dir=str(directory), checkpoints=[])
    learner = Learner(config, registration, FreshRun(), world)
    objective = SUPERVISED if work["kind"] == "sft" else rl_objective(config)
    seconds: list[float] = []
    cpu_seconds: list[float] = []
    steps: list[dict[str, float]] = []
    for step, body in enumerate(bodies):
        if begins := work.get("begins"):
            time.sleep(max(0.0, begins[step] - time.time()))  # of who takes turns with another process
        begin, cpu_begin = time.perf_counter(), time.process_time()
        with learner.timed("load"):
            batch = msgspec.msgpack.decode(body, type=wire.TrainingBatch)
            sequences = batch_sequences(batch, config.trainer.seq_len)
        metrics = learner.train_step(sequences, objective, batch.temperature)
        seconds.append(time.perf_counter() - begin)
        cpu_seconds.append(time.process_time() - cpu_begin)
        trained = float(count_trained(sequences))
        steps.append(metrics | learner.take_times() | {"trained_tokens": trained})
    counted, total = steps[work["warmup"] :], sum(seconds[work["warmup"] :])
    figures = {
        "trained_tokens_per_s": sum(step["trained_tokens"] for step in counted) / total,
        "tokens_per_s": sum(step["batch/tokens"] for step in counted) / total,
        "step_s": total / len(counted),
        "step_cpu_s": statistics.fmean(cpu_seconds[work["warmup"] :]),
        **{f"{name}_s": _mean(counted, f"time/{name}") for name in ("load", "forward_backward", "optimizer")},
        "peak_memory_gib": steps[-1]["perf/peak_memory_gib"],
        "first_grad_norm": steps[0]["optim/grad_norm"],
    }
    if "perf/mfu" in counted[0]:
        figures["mfu"] = _mean(counted, "perf/mfu")
    return figures, seconds, world.is_main


def _training_rollout(index: int, rollout: dict[str, Any]) -> wire.TrainingRollout:
    prompt, completion = rollout["prompt"], rollout["completion"]
    tokens = len(prompt) + len(completion)
    return wire.TrainingRollout(
        group=rollout["group"],
        index=index,
        environment="reverse_text",
        problem_key="p",
        token_ids=np.array(prompt + completion, "<u4").tobytes(),
        loss_mask=(np.arange(tokens) >= len(prompt)).astype(np.uint8).tobytes(),
        inference_logprobs=np.zeros(tokens, "<f4").tobytes(),
        advantage=rollout["advantage"],
        reward=rollout["reward"],
        min_policy_version=0,
        max_policy_version=0,
    )


def _mean(steps: Sequence[dict[str, float]], name: str) -> float:
    return statistics.fmean(step[name] for step in steps)


def main() -> None:
    directory, *overrides = sys.argv[1:]
    figures, seconds, is_main = measure(Path(directory), overrides)
    if is_main:
        print(json.dumps(seconds))
        print(json.dumps(figures))


if __name__ == "__main__":
    run_rank(main)
