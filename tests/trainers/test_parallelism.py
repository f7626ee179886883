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
from trainers.distributed.mesh import World

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

Ways = dict[str, list[dict[str, Any]]]
MUON = {"optimizer.kind": "muon"}
LORA = {"model.lora.rank": 8}
HSDP = {"trainer.replicas": 2}
TENSOR = {"trainer.tensor_parallel": 2}
CONTEXT = {"trainer.context_parallel": 2}
PIPELINE = {"trainer.pipeline_parallel": 2, "trainer.seq_len": 64}  # about three micro-batches for each stage
RECOMPUTED = {"trainer.activation_checkpointing": True}
OFFLOADED = RECOMPUTED | {"trainer.activation_offload": True, "trainer.cpu_offload": True}
TWO_RANKS: Ways = {
    "shard 2": [{}],
    "shard 2, muon": [MUON],
    "shard 2, offloaded, muon": [OFFLOADED | MUON],
    "replicas 2": [HSDP],
    "replicas 2, offloaded": [HSDP | OFFLOADED],
    "tensor 2": [TENSOR],
    "context 2": [CONTEXT],
    "context 2, recomputed": [CONTEXT | RECOMPUTED],
    "lora, replicas 2": [LORA | HSDP],
    "lora, context 2": [LORA | CONTEXT],
    "lora, shard 2, muon": [LORA | MUON],
    "resumed: tensor 2, shard 2, alone": [TENSOR | {"until": 2}, {"until": 4}],
    "resumed: alone, context 2, tensor 2": [CONTEXT | {"until": 3}, TENSOR],
    "pipeline 2": [PIPELINE],
    "pipeline 2, recomputed, muon": [PIPELINE | MUON | RECOMPUTED],
    "lora, pipeline 2": [LORA | PIPELINE],
    "resumed: pipeline 2, shard 2, pipeline 2, alone": [PIPELINE | {"until": 1}, {"until": 2}, PIPELINE | {"until": 3}],
}
FOUR_RANKS: Ways = {
    "shard 2, tensor 2, muon": [TENSOR | MUON],
    "context 2, tensor 2": [CONTEXT | TENSOR],
    "replicas 2, tensor 2": [HSDP | TENSOR],
    "replicas 2, context 2": [HSDP | CONTEXT],
    "lora, replicas 2, context 2, muon": [LORA | HSDP | CONTEXT | MUON],
    "resumed: replicas 2 x shard 2, shard 2 x tensor 2": [HSDP | {"until": 3}, TENSOR],
    "resumed: shard 2 x tensor 2, muon, alone": [TENSOR | MUON | {"until": 3}],
    "pipeline 4": [PIPELINE | {"trainer.pipeline_parallel": 4}],
    "pipeline 2, shard 2": [PIPELINE],
    "resumed: alone, pipeline 2 x replicas 2, pipeline 4": [
        PIPELINE | HSDP | {"until": 3},
        {"trainer.pipeline_parallel": 4},
    ],
    "resumed: alone, context 2 x tensor 2, replicas 2": [CONTEXT | TENSOR | {"until": 3}, HSDP],
}
ALONE: Ways = {"adamw": [{}], "muon": [MUON], "lora, adamw": [LORA], "lora, muon": [LORA | MUON]}


def expected_of(name: str) -> str:
    """Which of ALONE a way must equal."""
    return f"{'lora, ' if 'lora' in name else ''}{'muon' if 'muon' in name else 'adamw'}"


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def trained_alone(
    request: pytest.FixtureRequest, model_dir: Path, llama_dir: Path, tmp_path_factory: pytest.TempPathFactory,
    world: World,
) -> tuple[Path, Path]:  # fmt: skip
    """A model, and what one rank makes of it."""
    model, directory = {"qwen3": model_dir, "llama": llama_dir}[request.param], tmp_path_factory.mktemp("alone")
    assert world.size == 1
    for name, [options] in ALONE.items():
        spread_steps(model, directory, name, options)
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
    for name in ways:
        if "resumed: alone" in name:
            spread_steps(model, tmp_path, name, {}, until=1)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
    arguments = [str(model), str(tmp_path), json.dumps(ways)]
    subprocess.run(
        [*command, "-m", "tests.trainers.spread_steps", *arguments],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True,
    )  # fmt: skip
    for name, parts in ways.items():
        if name.endswith("alone"):
            spread_steps(model, tmp_path, name, {k: v for k, v in parts[0].items() if k in MUON})
        assert_same(tmp_path / f"{name}.json", directory / f"{expected_of(name)}.json")
