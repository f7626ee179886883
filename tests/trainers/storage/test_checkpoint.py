"""Weights load elsewhere, checkpoints load back to the last bit."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.trainers.support import gather_model
from trainers.distributed.mesh import World
from trainers.errors import CheckpointCorrupt
from trainers.model.policy import load_policy, load_tokenizer, score_tokens
from trainers.optimizers.build import build_optimizer, optimizer_step
from trainers.packing import micro_batch, training_sequence
from trainers.run_config import ModelConfig, OptimizerConfig
from trainers.storage.checkpoint import load_checkpoint, newest_verified, write_checkpoint
from trainers.storage.durable import sync_and_hash, write_directory
from trainers.storage.shard_file import ShardWriter
from trainers.storage.weights import spread_weights, write_weights
from trainers.wire import CheckpointRef


class Trained:
    """A policy that took a few steps."""

    def __init__(self, model_dir: Path, world: World, steps: int, optimizer: str = "adamw") -> None:
        self.config = ModelConfig(path=str(model_dir))
        self.model = load_policy(self.config, world)
        self.optimizer = build_optimizer(self.model, OptimizerConfig.model_validate({"kind": optimizer}))
        for step in range(steps):
            self.step(step)

    def step(self, seed: int) -> float:
        ids = np.random.default_rng(seed).integers(0, 256, 30)
        loss = -score_tokens(self.model, micro_batch([training_sequence(ids, np.ones(30), 64)]), 1.0).logprobs_K.mean()
        loss.backward()
        optimizer_step(self.model, self.optimizer, lr=1e-2, max_grad_norm=1.0)
        return loss.item()

    def everything(self) -> dict[str, torch.Tensor]:
        moments = {
            f"{moment}/{name}": value.full_tensor() if isinstance(value, DTensor) else value
            for name, parameter in self.model.named_parameters()
            for moment, value in self.optimizer.state.get(parameter, {}).items()
            if value is not None
        }
        return {name: tensor.clone() for name, tensor in (gather_model(self.model) | moments).items()}


def test_a_shard_is_what_the_writer_of_torch_makes_of_the_same_tensors(world: World, tmp_path: Path) -> None:
    tensors = {
        "wide": torch.arange(12.0).reshape(3, 4),
        "step": torch.tensor(3.0),
        "half": torch.randn(5, 2).bfloat16(),
        "count": torch.arange(3),
        "none": torch.empty(0, 7),
        "spread": distribute_tensor(torch.randn(6, 2), world.layer_mesh),
    }
    ways = {"ours": ShardWriter, "theirs": functools.partial(HuggingFaceStorageWriter, save_distributed=True)}
    found: dict[str, dict[str, Any]] = {}
    for name, writer in ways.items():
        save(tensors, storage_writer=writer(tmp_path / name))
        (path,) = (tmp_path / name).iterdir()
        with safe_open(path, "pt") as file:
            found[name] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is no mapping
            told = {key: json.loads(text) if text.startswith("{") else text for key, text in file.metadata().items()}
        found[name] |= {"metadata": told, "file": path.name}
    ours, theirs = found["ours"], found["theirs"]
    assert (ours["metadata"], ours["file"]) == (theirs["metadata"], theirs["file"])
    assert ours.keys() == theirs.keys()
    for key in tensors:
        assert ours[key].dtype == theirs[key].dtype
        assert torch.equal(ours[key], theirs[key])


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
def test_a_checkpoint_restores_weights_and_moments_and_the_next_steps_of_any_optimizer(
    model_dir: Path, world: World, tmp_path: Path, optimizer: str
) -> None:
    first = Trained(model_dir, world, 3, optimizer)
    digests = write_checkpoint(tmp_path, 3, first.model, first.optimizer)
    assert digests == {path.name: sync_and_hash(path) for path in tmp_path.iterdir()}
    second = Trained(model_dir, world, 0, optimizer)
    load_checkpoint(tmp_path, second.model, second.optimizer)
    before, after = first.everything(), second.everything()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert [first.step(seed) for seed in (3, 4)] == [second.step(seed) for seed in (3, 4)]


def test_a_checkpoint_holds_no_pickle(model_dir: Path, world: World, tmp_path: Path) -> None:
    trained = Trained(model_dir, world, steps=1)
    write_checkpoint(tmp_path, 1, trained.model, trained.optimizer)
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".json"}


def test_a_checkpoint_of_another_format_is_refused(model_dir: Path, world: World, tmp_path: Path) -> None:
    trained = Trained(model_dir, world, steps=1)
    write_checkpoint(tmp_path, 1, trained.model, trained.optimizer)
    (tmp_path / "state.json").write_text(json.dumps({"format": 1, "step": 1}))
    with pytest.raises(CheckpointCorrupt, match="format 1; this version reads format 2"):
        load_checkpoint(tmp_path, trained.model, trained.optimizer)


def test_a_checkpoint_of_another_model_is_refused(model_dir: Path, world: World, tmp_path: Path) -> None:
    trained = Trained(model_dir, world, steps=1)
    write_checkpoint(tmp_path, 1, trained.model, trained.optimizer)
    del trained.model.model.layers[-1]
    with pytest.raises(CheckpointCorrupt, match=r"layers\.3\..* 11 tensors in all"):
        load_checkpoint(tmp_path, trained.model, trained.optimizer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_load_with_transformers_alone(
    model_dir: Path, world: World, tmp_path: Path, dtype: torch.dtype
) -> None:
    trained = Trained(model_dir, world, steps=1)
    tensors = gather_model(trained.model)
    spread = spread_weights(trained.model, world, dtype)
    write_weights(tmp_path, trained.model, spread, load_tokenizer(trained.config), dtype)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded).__name__ == "Qwen3ForCausalLM"
    assert loaded.dtype == dtype
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, tensors[name].to(dtype)), name
    messages = [{"role": "user", "content": "abc"}]
    original = AutoTokenizer.from_pretrained(model_dir).apply_chat_template(messages, tokenize=False)
    assert AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(messages, tokenize=False) == original


def test_resume_takes_the_newest_checkpoint_that_verifies(tmp_path: Path) -> None:
    refs = []
    for step in (3, 2, 1):
        saved = write_directory(tmp_path, step, lambda path: (path / "x").touch(), epoch=1, run="r")
        refs.append(CheckpointRef(step=step, path=str(saved.path), manifest_sha256=saved.manifest_sha256))
    (tmp_path / "step_3" / "x").write_text("damaged")
    assert newest_verified("r", refs) == refs[1]
    assert newest_verified("r", []) is None


def test_of_checkpoints_none_of_which_verifies_the_fault_of_the_newest_is_said(tmp_path: Path) -> None:
    refs = [CheckpointRef(step=step, path=str(tmp_path / f"step_{step}"), manifest_sha256="0") for step in (3, 2)]
    with pytest.raises(CheckpointCorrupt, match=r"newest: .*step_3: .*No such file.*`rollyard checkpoints verify r`"):
        newest_verified("r", refs)
