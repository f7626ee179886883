"""Run real trainers under torchrun against the test control plane."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import torch
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from environments import registry
from environments.types import Split
from tests.trainers.control_plane import RUN
from trainers.config import resolve
from trainers.distributed.spread import SpreadTensors
from trainers.storage.checkpoint import trained_tensors
from trainers.wire import TrainingBatch, TrainingRollout

ROOT = Path(__file__).parents[2]


def rl_config(model: Path, **overrides: Any) -> dict[str, Any]:
    """A small RL config as the control plane stores it; keywords are dotted keys with `__` for the dot."""
    base: dict[str, Any] = {
        "max_steps": 3,
        "model.path": str(model),
        "environments": [{"name": "reverse_text"}],
        "sampling.max_tokens": 16,
        "sampling.group_size": 4,
        "batch.batch_size": 8,
        "optimizer.lr": 1e-3,
        "trainer.seq_len": 128,
        "trainer.device": "cpu",
    }
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    return resolve(overrides=base | dotted).config.model_dump(mode="json")


def wandb_file(run_dir: Path) -> bytes:
    """What Weights & Biases wrote without a key, to be sent later."""
    [file] = (run_dir / "tracking" / "wandb").glob(f"wandb/offline-run-*/run-{RUN}.wandb")
    return file.read_bytes()


def in_bfloat16(model: Path, directory: Path) -> Path:
    """The same model with its weights in bfloat16."""
    AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).save_pretrained(directory)
    AutoTokenizer.from_pretrained(model).save_pretrained(directory)
    return directory


def newest_step(parent: Path) -> int:
    """Of the directories under their final names; -1 when there is none."""
    names = (path.name.removeprefix("step_") for path in parent.glob("step_*"))
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def gather_model(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All trained tensors, whole. Collective."""
    return SpreadTensors(trained_tensors(model)).whole()


def optimizer_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The whole state as `<moment>/<parameter>`. Collective."""
    return {
        f"{moment}/{name}": value.full_tensor() if isinstance(value, DTensor) else value
        for name, parameter in model.named_parameters()
        for moment, value in optimizer.state.get(parameter, {}).items()
    }


def random_batch(step: int, rollouts: int = 8, vocabulary: int = 256) -> TrainingBatch:
    """Rollouts of random tokens: enough to move the weights, and a function of the step alone."""
    rng = np.random.default_rng(step)
    return TrainingBatch(
        run=RUN,
        step=step,
        temperature=1.0,
        rollouts=[_random_rollout(rng, index, vocabulary) for index in range(rollouts)],
    )


def _random_rollout(rng: np.random.Generator, index: int, vocabulary: int) -> TrainingRollout:
    size, prompt = int(rng.integers(20, 60)), 10
    mask = np.arange(size) >= prompt
    return TrainingRollout(
        group=f"g{index // 4}",
        index=index % 4,
        environment="reverse_text",
        problem_key="p",
        token_ids=rng.integers(0, vocabulary, size).astype("<u4").tobytes(),
        loss_mask=mask.astype(np.uint8).tobytes(),
        inference_logprobs=np.where(mask, -5.5 + rng.normal(0, 0.1, size), 0).astype("<f4").tobytes(),
        advantage=float(rng.normal()),
        reward=float(rng.random()),
        min_policy_version=0,
        max_policy_version=0,
    )


def write_conversations(path: Path, count: int = 64) -> None:
    """Solved reverse_text problems as JSONL."""
    environment = registry.load("reverse_text")
    with path.open("wb") as file:
        for index in range(count):
            messages = environment.solution(environment.problem(Split.TRAIN, index))
            file.write(msgspec.json.encode({"messages": messages}) + b"\n")


def write_pairs(path: Path, count: int = 64) -> None:
    """Solved reverse_text problems beside copies of the text, as JSONL."""
    environment = registry.load("reverse_text")
    with path.open("wb") as file:
        for index in range(count):
            *prompt, answer = environment.solution(environment.problem(Split.TRAIN, index))
            pair = {"prompt": prompt, "chosen": answer.content, "rejected": answer.content[::-1] + "?"}
            file.write(msgspec.json.encode(pair) + b"\n")


def start_trainer(kind: str, url: str, world_size: int = 1) -> subprocess.Popen[str]:
    """Start `torchrun -m trainers.<kind>`; its output is a pipe."""
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
    return _start([*launcher, "-m", f"trainers.{kind}"], url)


def start_node(kind: str, url: str, node: int, meeting: Path) -> subprocess.Popen[str]:
    """Start one of two nodes of a trainer, with one rank each; its output is a pipe."""
    place = ["--nodes=2", f"--node={node}", "--ranks=1", f"--meeting={meeting}", "--interface=lo"]
    return _start(["trainers.distributed.node", kind, *place], url)


def _start(module: Sequence[str], url: str) -> subprocess.Popen[str]:
    run = {"ROLLYARD_URL": url, "ROLLYARD_TOKEN": "t", "ROLLYARD_RUN": RUN}
    return subprocess.Popen(
        [sys.executable, "-m", *module],
        cwd=ROOT,
        env=os.environ | run | {"OMP_NUM_THREADS": "1", "WANDB_API_KEY": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end_trainer(process: subprocess.Popen[str]) -> str:
    """Kill what is left of a trainer; returns all it has written, at the end of which its ranks say where they were."""
    with suppress(psutil.NoSuchProcess):
        for rank in psutil.Process(process.pid).children():
            rank.send_signal(signal.SIGABRT)
    try:
        return process.communicate(timeout=30)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]


def run_trainer(kind: str, url: str, world_size: int = 1) -> int:
    """Run a trainer of one node to its end."""
    return await_trainer(start_trainer(kind, url, world_size))


def await_trainer(trainer: subprocess.Popen[str]) -> int:
    """Wait for a trainer's end; prints its output so that a failed test shows it."""
    with trainer as process:
        try:
            output, _ = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            output = end_trainer(process)
    print(output)
    return process.returncode
