"""However the work and the model are spread over ranks, the same batches give the same losses and weights."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.trainers.spread_steps import spread_steps
from tests.trainers.support import ROOT
from trainers.parallel import World

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

Ways = dict[str, dict[str, Any]]
MUON = {"optimizer.kind": "muon"}
TWO_RANKS: Ways = {
    "shard 2": {},
    "shard 2, muon": MUON,
    "replicas 2": {"trainer.replicas": 2},
    "tensor 2": {"trainer.tensor_parallel": 2},
    "context 2": {"trainer.context_parallel": 2},
    "context 2, recomputed": {"trainer.context_parallel": 2, "trainer.activation_checkpointing": True},
}
FOUR_RANKS: Ways = {
    "shard 2, tensor 2, muon": {"trainer.tensor_parallel": 2, **MUON},
    "context 2, tensor 2": {"trainer.context_parallel": 2, "trainer.tensor_parallel": 2},
    "replicas 2, tensor 2": {"trainer.replicas": 2, "trainer.tensor_parallel": 2},
    "replicas 2, context 2": {"trainer.replicas": 2, "trainer.context_parallel": 2},
}


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def trained_alone(
    request: pytest.FixtureRequest, model_dir: Path, llama_dir: Path, tmp_path_factory: pytest.TempPathFactory,
    world: World,
) -> tuple[Path, Path]:  # fmt: skip
    """A model, and what one rank makes of it."""
    model, directory = {"qwen3": model_dir, "llama": llama_dir}[request.param], tmp_path_factory.mktemp("alone")
    assert world.size == 1
    spread_steps(model, directory, "adamw", {})
    spread_steps(model, directory, "muon", MUON)
    return model, directory


def assert_same(ours: Path, theirs: Path) -> None:
    """Metrics, weights and optimizer state."""
    for step, (metrics, expected) in enumerate(zip(*(json.loads(p.read_text()) for p in (ours, theirs)), strict=True)):
        for key, value in expected.items():
            if not key.startswith(("perf/", "time/")):
                assert metrics[key] == pytest.approx(value, rel=1e-4, abs=1e-5), f"{ours.stem}: {key} of step {step}"
    tensors, expected = (load_file(path.with_suffix(".safetensors")) for path in (ours, theirs))
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(
            tensor, expected[name], atol=1e-5, rtol=1e-4, msg=lambda text, name=name: f"{ours.stem}: {name}: {text}"
        )


@pytest.mark.parametrize(("world_size", "ways"), [(2, TWO_RANKS), (4, FOUR_RANKS)], ids=["two ranks", "four ranks"])
def test_spread_training_equals_training_alone(
    trained_alone: tuple[Path, Path], tmp_path: Path, world_size: int, ways: Ways
) -> None:
    model, directory = trained_alone
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
    arguments = [str(model), str(tmp_path), json.dumps(ways)]
    subprocess.run(
        [*command, "-m", "tests.trainers.spread_steps", *arguments],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True,
    )  # fmt: skip
    for name in ways:
        assert_same(tmp_path / f"{name}.json", directory / ("muon.json" if "muon" in name else "adamw.json"))
