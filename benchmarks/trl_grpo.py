"""TRL's side of `benchmarks.trainer`: steps of its GRPOTrainer on the same batches, with nothing but steps measured.

    python -m venv /venv && /venv/bin/pip install trl==1.16.0 torch==2.13.0 transformers==5.19.0 accelerate==1.15.0
    python -m benchmarks.trainer --pairs 5 --other-command '/venv/bin/python -m benchmarks.trl_grpo {work}'

Where in doubt, TRL has the advantage: no reference model, no gradient checkpointing, no logging, no saving; what it
does once per batch before the first forward pass (decoding, padding, rewards, advantages) is not counted, although the
same of ours is. Completions come from a rollout function. The loss is `dapo` without a scale of rewards: advantages
summed over the completion tokens of the batch and divided by their number, as ours.
"""

import argparse
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Clock(TrainerCallback):
    """Adds up the parts of every step: wall and CPU seconds in all, and wall seconds of forward and backward passes."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self._spent = {"wall": 0.0, "cpu": 0.0, "passes": 0.0}

    def on_step_begin(self, *_args: Any, **_kwargs: Any) -> None:
        self._spent = {"wall": -now(), "cpu": -time.process_time(), "passes": 0.0}

    def on_step_end(self, *_args: Any, **_kwargs: Any) -> None:
        self._spent["wall"] += now()
        self._spent["cpu"] += time.process_time()
        self.steps.append(self._spent)

    def leave_out(self, wall_s: float, cpu_s: float) -> None:
        """Take off what is not counted as part of the step."""
        self._spent["wall"] -= wall_s
        self._spent["cpu"] -= cpu_s
        self._spent["passes"] -= wall_s

    def add_pass(self, wall_s: float) -> None:
        """Add a forward and backward pass, with what was left out inside it."""
        self._spent["passes"] += wall_s


class TimedTrainer(GRPOTrainer):
    """Tells a clock about the parts of a step."""

    clock: Clock
    first_grad_norm: float | None = None

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        begin, cpu_begin = now(), time.process_time()
        prepared = super()._generate_and_score_completions(inputs)
        self.clock.leave_out(now() - begin, time.process_time() - cpu_begin)
        return prepared

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        begin = now()
        loss = super().training_step(*args, **kwargs)
        self.clock.add_pass(now() - begin)
        return loss

    def _clip_grad_norm(self, model: torch.nn.Module) -> Any:
        norm = super()._clip_grad_norm(model)
        if self.first_grad_norm is None:
            self.first_grad_norm = float(norm)
        return norm


def now() -> float:
    """Seconds, when everything that was asked for is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def measure(directory: Path, micro_batch: int, attention: str) -> dict[str, float]:
    """The figures of TRL on the batches of a directory."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    work = json.loads((directory / "work.json").read_text())
    steps = work["steps"]
    turns = iter(steps)
    at: dict[str, list[dict[str, Any]]] = {}

    def play(prompts: list[Any], _trainer: GRPOTrainer) -> dict[str, Any]:
        at["now"] = next(turns)
        assert len(prompts) == len(at["now"])
        ids = {f"{part}_ids": [rollout[part] for rollout in at["now"]] for part in ("prompt", "completion")}
        return ids | {"logprobs": None}

    def reward(**_kwargs: Any) -> list[float]:
        return [rollout["reward"] for rollout in at["now"]]

    size, clock = len(steps[0]), Clock()
    trainer = TimedTrainer(
        model=AutoModelForCausalLM.from_pretrained(
            directory / "model", dtype=torch.float32, attn_implementation=attention
        ),
        processing_class=AutoTokenizer.from_pretrained(directory / "model"),
        reward_funcs=reward,
        rollout_func=play,
        callbacks=[clock],
        train_dataset=Dataset.from_dict({"prompt": ["p"] * (len(steps) * size)}),
        args=GRPOConfig(
            output_dir=str(directory / "trl"),
            max_steps=len(steps),
            per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=size // micro_batch,
            num_generations=work["group_size"],
            max_completion_length=max(len(rollout["completion"]) for step in steps for rollout in step),
            loss_type="dapo",
            scale_rewards="none",
            beta=0.0,
            learning_rate=work["lr"],
            lr_scheduler_type="constant",
            adam_beta2=0.95,
            weight_decay=0.0,
            max_grad_norm=1.0,
            bf16=work["dtype"] == "bfloat16",
            use_cpu=work["device"] == "cpu",
            gradient_checkpointing=False,
            dataloader_pin_memory=False,
            disable_tqdm=True,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
        ),
    )
    trainer.clock = clock
    trainer.train()
    counted, spent = steps[work["warmup"] :], clock.steps[work["warmup"] :]
    rollouts = [rollout for step in counted for rollout in step]
    total, passes = (sum(step[name] for step in spent) for name in ("wall", "passes"))
    trained = sum(len(rollout["completion"]) for rollout in rollouts)
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    on_cuda = work["device"] == "cuda"
    return {
        "trained_tokens_per_s": trained / total,
        "tokens_per_s": (trained + sum(len(rollout["prompt"]) for rollout in rollouts)) / total,
        "step_s": total / len(counted),
        "step_cpu_s": sum(step["cpu"] for step in spent) / len(counted),
        "forward_backward_s": passes / len(counted),
        "optimizer_s": (total - passes) / len(counted),
        "peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30 if on_cuda else peak_kib / 2**20,
        "first_grad_norm": trainer.first_grad_norm,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="directory that benchmarks.trainer made")
    parser.add_argument("--micro-batch", type=int, default=8, help="rollouts of one forward and backward pass")
    parser.add_argument("--attention", choices=["sdpa", "eager"], default="sdpa")
    options = parser.parse_args()
    print(json.dumps(measure(options.work, options.micro_batch, options.attention)))


if __name__ == "__main__":
    main()
