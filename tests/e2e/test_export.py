"""What a run left is trained on: imitated, forked on more ranks with its optimizer, and preferred, by real trainers."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.accounts import let_others_pass
from tests.e2e.yard import Yard
from tests.lanes import long_lane

pytestmark = [pytest.mark.e2e, pytest.mark.vllm]

STEPS = 4


@long_lane("a trainer learns from what is exported in tests/rollouts/curation/test_examples.py")
def test_exported_rollouts_train_a_run_that_forks_on_more_ranks(
    yard: Yard, base: Path, adapted: str, tmp_path: Path
) -> None:
    let_others_pass(tmp_path)
    sources = tmp_path / "sources.jsonl.gz"
    written = yard.rollyard("export-sft", adapted, "--best", "0", "--truncated", "--output", str(sources))
    assert written["examples"] == 192

    data = ["data.batch_size=32", f"max_steps={STEPS}", "optimizer.warmup_steps=0", "trainer.checkpoint_every=2"]
    imitation = yard.finish("reverse-text-sft", f"model.path={base}", f"data.path={sources}", *data)
    losses = yard.metric(imitation, "loss/mean")
    assert len(losses) == STEPS
    assert losses[-1] < losses[0] - 0.1
    listed = yard.rollyard("checkpoints", "list", imitation)
    assert [row["step"] for row in listed] == [4, 2]

    # The fork has the weights and the moments of one rank on two. It reads the data anew, from its first batch.
    wide = ["max_steps=1", "trainer.world_size=2", "--fork-optimizer", "--fork-from", f"{imitation}@2"]
    same = ["reverse-text-sft", f"data.path={sources}", *data[:1], "optimizer.warmup_steps=0"]
    fork = yard.finish(*same, *wide)
    [first] = yard.metric(fork, "loss/mean")
    assert first < losses[0] - 0.05, "the fork did not begin where its source was"
    weights = yard.home.path / "runs" / fork / "weights"
    start, moved = (load_file(weights / f"step_{step}" / "model.safetensors") for step in (0, 1))
    assert any(not torch.equal(start[name], moved[name]) for name in start)


@long_lane("that pairs are learned from is always tested")
def test_exported_pairs_train_a_run(yard: Yard, base: Path, adapted: str, tmp_path: Path) -> None:
    let_others_pass(tmp_path)
    pairs = tmp_path / "pairs.jsonl"
    yard.rollyard("export-sft", adapted, "--pairs", "--truncated", "--output", str(pairs))
    assert pairs.read_text().count("\n") >= 2, "no group of a random model has answers of different rewards"
    assert {"chosen", "rejected"} <= json.loads(pairs.read_text().splitlines()[0]).keys()

    preference = yard.finish(
        "reverse-text-sft", f"model.path={base}", f"data.path={pairs}", "data.preference.beta=0.1",
        "data.batch_size=2", f"max_steps={STEPS}", "optimizer.warmup_steps=0",
    )  # fmt: skip
    losses = yard.metric(preference, "loss/mean")
    assert len(losses) == STEPS
    assert losses[0] == pytest.approx(0.6931, abs=1e-3), "policy and reference are the same at first"
