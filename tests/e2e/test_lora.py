"""A LoRA run from launch to fork: adapters are trained, served by real vLLM, checkpointed, exported, and forked."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.e2e.yard import Yard
from tests.lanes import IS_LONG

pytestmark = [pytest.mark.e2e, pytest.mark.vllm]

STEPS = 6


def test_adapters_are_trained_served_checkpointed_exported_and_forked(
    yard: Yard, base: Path, adapted: str, tmp_path: Path
) -> None:
    directory = yard.home.path / "runs" / adapted

    # What inference says of a token is what the trainer says: it served the adapter of each version, not the base.
    mismatch = yard.metric(adapted, "mismatch_kl/mean")
    assert len(mismatch) == STEPS
    assert max(mismatch) < 1e-4, mismatch
    newest = directory / "weights" / f"step_{STEPS}"
    assert (newest / "adapter_config.json").is_file()
    assert not (newest / "config.json").exists()
    moved = load_file(newest / "adapter_model.safetensors")
    assert all(tensor.abs().max() > 1e-3 for name, tensor in moved.items() if "lora_B" in name)
    whole, part = (base / "model.safetensors").stat().st_size, (newest / "adapter_model.safetensors").stat().st_size
    assert part < whole / 5
    started = "SELECT count(*) FROM rollouts_replica AS p JOIN rollouts_run AS r ON r.id = p.run_id WHERE r.key = %s"
    assert yard.sql(started, adapted) == [(2,)], "a server or a trainer had to be started again"

    listed = yard.rollyard("checkpoints", "list", adapted)
    assert [(row["step"], row["state"]) for row in listed] == [(6, "complete"), (4, "complete"), (2, "deleted")]
    assert yard.rollyard("checkpoints", "verify", adapted)["faults"] == {}
    yard.rollyard("checkpoints", "export", f"{adapted}@4", "-o", str(tmp_path / "exported"))
    exported = load_file(tmp_path / "exported" / "model.safetensors")
    assert exported.keys() == load_file(base / "model.safetensors").keys()

    if not IS_LONG:  # tests/trainers/model/test_lora.py merges and starts from an adapter, runs/test_forks.py forks
        return
    fork = yard.finish(
        "reverse-text-rl", "batch.batch_size=32", "evaluation=null", "max_steps=1", "--fork-from", f"{adapted}@4"
    )
    start = load_file(yard.home.path / "runs" / fork / "weights" / "step_0" / "model.safetensors")
    assert start.keys() == exported.keys()
    assert all(torch.equal(start[name], exported[name]) for name in start)
    assert max(yard.metric(fork, "mismatch_kl/mean")) < 1e-4
    assert yard.rollyard("checkpoints", "list", adapted)[1]["forks"] == [fork]
