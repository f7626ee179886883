"""The trainer's benchmark, at its smallest: real trainers in processes of their own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.trainer import arguments
from benchmarks.trainer_load.work import make_batch
from tests.lanes import long_lane

SMALLEST = "--width 64 --layers 1 --vocabulary 259 --rollouts 4 --group-size 2 --prompt 9 --completion 8 --longest 16"
SMALLEST += " --steps 1 --threads 1"
ROOT = Path(__file__).parents[2]


def measure(*options: str) -> dict[str, Any]:
    """The JSON on the last line."""
    command = [sys.executable, "-m", "benchmarks.trainer", *SMALLEST.split(), *options]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@long_lane("the test below measures our side by the same way")
def test_two_processes_do_the_work_of_another_trainer_with_one() -> None:
    other = f"{sys.executable} -m torch.distributed.run --standalone -m benchmarks.trainer_load.ours {{work}}"
    found = measure("--world-size=2", f"--other-command={other}", "--set=trainer.peak_tflops=1")["figures"]
    assert [len(found[side]["rounds"]) for side in ("ours", "other")] == [1, 1]
    assert found["ratio"]["first_grad_norm"]["median"] == pytest.approx(1, rel=1e-4)
    for side in ("ours", "other"):
        figures = {name: spread["median"] for name, spread in found[side]["spread"].items()}
        assert figures["tokens_per_s"] > figures["trained_tokens_per_s"] > 0
        assert figures["step_s"] > figures["forward_backward_s"] > 0
        assert figures["peak_memory_gib"] > 0
    assert found["ours"]["spread"]["mfu"]["median"] > 0
    assert "mfu" not in found["other"]["spread"]


@pytest.mark.slow
def test_supervised_steps_are_measured_too() -> None:
    found = measure("--kind=sft")
    assert found["options"]["kind"] == "sft"
    assert found["machine"]["cores"] > 0
    assert found["figures"]["ours"]["spread"]["trained_tokens_per_s"]["median"] > 0


def test_batches_are_groups_of_one_prompt_with_centred_advantages() -> None:
    options = arguments().parse_args(SMALLEST.split())
    batch = make_batch(np.random.default_rng(1), options)
    assert batch == make_batch(np.random.default_rng(1), options)
    assert [rollout["group"] for rollout in batch] == ["0", "0", "1", "1"]
    for group in (batch[:2], batch[2:]):
        assert group[0]["prompt"] == group[1]["prompt"]
        assert 3 <= len(group[0]["prompt"]) <= 9
        assert sum(rollout["advantage"] for rollout in group) == pytest.approx(0)
    assert all(1 <= len(rollout["completion"]) <= 16 for rollout in batch)
    assert max(max(rollout["completion"]) for rollout in batch) < 259


def test_without_a_spread_all_completions_are_equally_long() -> None:
    options = arguments().parse_args([*SMALLEST.split(), "--spread=0"])
    batch = make_batch(np.random.default_rng(1), options)
    assert {len(rollout["completion"]) for rollout in batch} == {8}
