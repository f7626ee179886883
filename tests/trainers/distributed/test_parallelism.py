"""However the work and the model are spread over ranks, the same batches give the same losses and weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file

from tests.lanes import IS_LONG
from tests.trainers.crew import Crew
from tests.trainers.spread_steps import STEPS

pytestmark = [pytest.mark.slow]

Options = dict[str, Any]
NONE: Options = {}
MUON = {"optimizer.kind": "muon"}
LORA = {"model.lora.rank": 8}
HSDP = {"trainer.replicas": 2}
TENSOR = {"trainer.tensor_parallel": 2}
CONTEXT = {"trainer.context_parallel": 2}
PIPELINE = {"trainer.pipeline_parallel": 2, "trainer.seq_len": 64}  # about three micro-batches for each stage
FOUR_STAGES = PIPELINE | {"trainer.pipeline_parallel": 4}
RECOMPUTED = {"trainer.activation_checkpointing": True}
OFFLOADED = RECOMPUTED | {"trainer.activation_offload": True, "trainer.cpu_offload": True}


class Part(NamedTuple):
    """A trainer of its own that resumes from the checkpoint of the one before it."""

    ranks: int
    options: Options
    until: int = STEPS
    """How many steps there are at its end."""


WAYS: dict[str, list[Part]] = {
    "shard 2": [Part(2, NONE)],
    "shard 2, muon": [Part(2, MUON)],
    "shard 2, offloaded, muon": [Part(2, OFFLOADED | MUON)],
    "replicas 2": [Part(2, HSDP)],
    "replicas 2, offloaded": [Part(2, HSDP | OFFLOADED)],
    "tensor 2": [Part(2, TENSOR)],
    "context 2": [Part(2, CONTEXT)],
    "context 2, recomputed": [Part(2, CONTEXT | RECOMPUTED)],
    "lora, replicas 2": [Part(2, LORA | HSDP)],
    "lora, context 2": [Part(2, LORA | CONTEXT)],
    "lora, shard 2, muon": [Part(2, LORA | MUON)],
    "tensor 2, then shard 2, then alone": [Part(2, TENSOR, 2), Part(2, NONE, 3), Part(1, NONE)],
    "alone, then context 2, then tensor 2": [Part(1, NONE, 1), Part(2, CONTEXT, 2), Part(2, TENSOR)],
    "pipeline 2": [Part(2, PIPELINE)],
    "pipeline 2, recomputed, muon": [Part(2, PIPELINE | MUON | RECOMPUTED)],
    "lora, pipeline 2": [Part(2, LORA | PIPELINE)],
    "pipeline 2, then shard 2, then pipeline 2, then alone": [
        Part(2, PIPELINE, 1), Part(2, NONE, 2), Part(2, PIPELINE, 3), Part(1, NONE),
    ],
    "shard 2 x tensor 2, muon": [Part(4, TENSOR | MUON)],
    "context 2 x tensor 2": [Part(4, CONTEXT | TENSOR)],
    "replicas 2 x tensor 2": [Part(4, HSDP | TENSOR)],
    "replicas 2 x context 2": [Part(4, HSDP | CONTEXT)],
    "lora, replicas 2 x context 2, muon": [Part(4, LORA | HSDP | CONTEXT | MUON)],
    "replicas 2 x shard 2, then shard 2 x tensor 2": [Part(4, HSDP, 3), Part(4, TENSOR)],
    "shard 2 x tensor 2, muon, then alone": [Part(4, TENSOR | MUON, 3), Part(1, MUON)],
    "pipeline 4": [Part(4, FOUR_STAGES)],
    "pipeline 2 x shard 2": [Part(4, PIPELINE)],
    "alone, then pipeline 2 x replicas 2, then pipeline 4": [
        Part(1, NONE, 1), Part(4, PIPELINE | HSDP, 3), Part(4, FOUR_STAGES),
    ],
    "alone, then context 2 x tensor 2, then replicas 2 x shard 2": [
        Part(1, NONE, 1), Part(4, CONTEXT | TENSOR, 3), Part(4, HSDP),
    ],
}  # fmt: skip
OF_LLAMA = {
    "tensor 2",
    "context 2",
    "pipeline 2",
    "tensor 2, then shard 2, then alone",
    "shard 2 x tensor 2, muon",
    "context 2 x tensor 2",
    "pipeline 4",
}
"""Where heads or tying matter: Llama has fewer key heads than query heads, and an output layer of its own."""
USUAL = {
    "qwen3": {
        "shard 2, offloaded, muon",
        "tensor 2, then shard 2, then alone",
        "pipeline 2, recomputed, muon",
        "lora, replicas 2 x context 2, muon",
        "shard 2 x tensor 2, muon, then alone",
        "alone, then pipeline 2 x replicas 2, then pipeline 4",
        "alone, then context 2 x tensor 2, then replicas 2 x shard 2",
    },
    "llama": {"pipeline 2", "context 2 x tensor 2"},
}
"""Every dimension, optimizer and offload, and changes from one mesh to another; the long lane goes all ways."""
CASES = [("qwen3", name) for name in WAYS]
CASES += [("llama", name) for name in WAYS if name in OF_LLAMA]
CASES = [(model, name) for model, name in CASES if IS_LONG or name in USUAL[model]]
Alone = Callable[[str, Options], Path]


def train(crew: Crew, model: Path, into: Path, parts: list[Part]) -> Path:
    """Returns `into`, beside which lies what the last part came to."""
    for part in parts:
        crew.call(
            part.ranks, "tests.trainers.spread_steps:spread_steps", str(model), str(into), part.options, part.until
        )
    return into


@pytest.fixture(scope="module")
def models(model_dir: Path, llama_dir: Path) -> dict[str, Path]:
    return {"qwen3": model_dir, "llama": llama_dir}


@pytest.fixture(scope="module")
def alone(crew: Crew, models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """What one rank makes of a model with options that change what is computed; computed once."""
    directory, done = tmp_path_factory.mktemp("alone"), dict[str, Path]()

    def trained(model: str, options: Options) -> Path:
        name = f"{model} {sorted(options)}"
        if name not in done:
            done[name] = train(crew, models[model], directory / str(len(done)), [Part(1, options)])
        return done[name]

    return trained


def assert_same(ours: Path, theirs: Path) -> None:
    """Metrics, weights and optimizer state."""
    found, wanted = (json.loads(path.with_suffix(".json").read_text()) for path in (ours, theirs))
    for step, (metrics, expected) in enumerate(zip(found, wanted, strict=True)):
        for key, value in expected.items():
            if not key.startswith(("perf/", "time/")):
                assert metrics[key] == pytest.approx(value, rel=1e-4, abs=1e-5), f"{key} of step {step}"
    tensors, expected = (load_file(path.with_suffix(".safetensors")) for path in (ours, theirs))
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(
            tensor, expected[name], atol=1e-5, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize(("model", "way"), CASES)
def test_spread_training_equals_training_alone(
    crew: Crew, models: dict[str, Path], alone: Alone, tmp_path: Path, model: str, way: str
) -> None:
    parts = WAYS[way]
    ours = train(crew, models[model], tmp_path / "run", parts)
    changing = {key: value for key, value in parts[0].options.items() if key in MUON | LORA}
    assert_same(ours, alone(model, changing))
