"""A LoRA run from launch to fork: adapters are trained, served by real vLLM, checkpointed, exported, and forked."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.e2e.yard import make_tiny_model, running_yard

pytestmark = [pytest.mark.e2e, pytest.mark.vllm, pytest.mark.timeout(1200)]

STEPS = 6
SMALL = [
    "reverse-text-rl",
    "batch.batch_size=32",
    "evaluation=null",
    "algorithm.max_async_level=0",
    "optimizer.warmup_steps=0",
]


def test_adapters_are_trained_served_checkpointed_exported_and_forked(tmp_path: Path) -> None:
    base = make_tiny_model(tmp_path / "base")
    lora = ["model.lora.rank=8", "model.lora.alpha=16", "optimizer.lr=1e-2"]
    kept = ["trainer.checkpoint_every=2", "trainer.keep_checkpoints=1", "trainer.keep_every=4"]
    with running_yard(tmp_path / "log") as yard:
        run = yard.finish(*SMALL, f"model.path={base}", f"max_steps={STEPS}", *lora, *kept)
        [directory] = (yard.home.path / "runs").glob(run)

        # What inference says of a token is what the trainer says: it served the adapter of each version, not the base.
        mismatch = yard.metric(run, "mismatch_kl/mean")
        assert len(mismatch) == STEPS
        assert max(mismatch) < 1e-4, mismatch
        newest = directory / "weights" / f"step_{STEPS}"
        assert (newest / "adapter_config.json").is_file()
        assert not (newest / "config.json").exists()
        moved = load_file(newest / "adapter_model.safetensors")
        assert all(tensor.abs().max() > 1e-3 for name, tensor in moved.items() if "lora_B" in name)
        whole, part = (base / "model.safetensors").stat().st_size, (newest / "adapter_model.safetensors").stat().st_size
        assert part < whole / 5
        started = (
            "SELECT count(*) FROM rollouts_replica AS p JOIN rollouts_run AS r ON r.id = p.run_id WHERE r.key = %s"
        )
        assert yard.sql(started, run) == [(2,)], "a server or a trainer had to be started again"

        listed = yard.rollyard("checkpoints", "list", run)
        assert [(row["step"], row["state"]) for row in listed] == [(6, "complete"), (4, "complete"), (2, "deleted")]
        assert yard.rollyard("checkpoints", "verify", run)["faults"] == {}
        yard.rollyard("checkpoints", "export", run, "--step", "4", "--out", str(tmp_path / "exported"))

        fork = yard.finish(*SMALL, "max_steps=1", "--fork-from", f"{run}@4")
        start = load_file(yard.home.path / "runs" / fork / "weights" / "step_0" / "model.safetensors")
        exported = load_file(tmp_path / "exported" / "model.safetensors")
        assert start.keys() == exported.keys() == load_file(base / "model.safetensors").keys()
        assert all(torch.equal(start[name], exported[name]) for name in start)
        assert max(yard.metric(fork, "mismatch_kl/mean")) < 1e-4
        assert yard.rollyard("checkpoints", "list", run)[1]["forks"] == [fork]
