"""LoRA: only the adapter learns, the files are PEFT's, and merged weights compute what the adapter computes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import (
    ApertusConfig,
    AutoModelForCausalLM,
    Glm4MoeConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3MoeConfig,
)

from tests.trainers.publish_alone import publish_alone
from tests.trainers.support import gather_model, in_bfloat16
from trainers.distributed.mesh import World
from trainers.distributed.spread import PIECE
from trainers.errors import AdapterUnsuitable
from trainers.model.lora import add_adapter, write_adapter
from trainers.model.policy import load_policy, score_tokens
from trainers.model.tiny import tiny_tokenizer
from trainers.optimizers.build import build_optimizer, optimizer_step
from trainers.packing import micro_batch, training_sequence
from trainers.run_config import LoraConfig, ModelConfig, OptimizerConfig
from trainers.storage.checkpoint import load_checkpoint, trained_tensors, write_checkpoint
from trainers.storage.export import export_checkpoint

pytestmark = [pytest.mark.slow]
TOKENS = torch.randint(0, 256, (1, 24), generator=torch.Generator().manual_seed(7))


def lora(model_dir: Path, **values: Any) -> ModelConfig:
    return ModelConfig(path=str(model_dir), lora=LoraConfig(**({"rank": 8, "alpha": 16} | values)))


class Adapted:
    """A policy with an adapter that took a few steps."""

    def __init__(self, config: ModelConfig, world: World, steps: int = 0) -> None:
        torch.manual_seed(0)
        self.config = config
        self.model = load_policy(config, world)
        self.optimizer = build_optimizer(self.model, OptimizerConfig(lr=1e-2))
        for step in range(steps):
            self.step(step)

    def step(self, seed: int) -> float:
        ids = np.random.default_rng(seed).integers(0, 256, 30)
        loss = -score_tokens(self.model, micro_batch([training_sequence(ids, np.ones(30), 64)]), 1.0).logprobs_K.mean()
        loss.backward()
        optimizer_step(self.model, self.optimizer, lr=1e-2, max_grad_norm=1.0)
        return loss.item()

    def write(self, directory: Path) -> Path:
        directory.mkdir()
        write_adapter(directory, self.config.lora, self.config.path, gather_model(self.model), torch.float32)
        return directory


def plain(directory: Path | str) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return model


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(TOKENS).logits
    return found


def test_a_fresh_adapter_changes_nothing(model_dir: Path) -> None:
    model, before = plain(model_dir), logits(plain(model_dir))
    add_adapter(model, LoraConfig(rank=4))
    assert torch.equal(logits(model), before)


def test_only_the_adapter_gets_gradients_and_moments(model_dir: Path, world: World) -> None:
    adapted = Adapted(lora(model_dir), world, steps=2)
    trained = {name for name, parameter in adapted.model.named_parameters() if parameter.requires_grad}
    assert trained == set(trained_tensors(adapted.model))
    assert len(trained) == 4 * 7 * 2  # layers, target modules, A and B
    assert all(".lora_A." in name or ".lora_B." in name for name in trained)
    in_optimizer = {parameter for group in adapted.optimizer.param_groups for parameter in group["params"]}
    assert in_optimizer == {p for p in adapted.model.parameters() if p.requires_grad} == set(adapted.optimizer.state)
    base = plain(model_dir).state_dict()
    for name, parameter in adapted.model.named_parameters():
        if name not in trained:
            whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
            assert torch.equal(whole, base[name.replace("base_layer.", "")]), name


def test_an_adapter_beside_weights_in_bfloat16_is_float32(model_dir: Path, world: World, tmp_path: Path) -> None:
    beside_float32 = gather_model(Adapted(lora(model_dir), world).model)
    beside_bfloat16 = gather_model(Adapted(lora(in_bfloat16(model_dir, tmp_path)), world).model)
    assert all(torch.equal(tensor, beside_float32[name]) for name, tensor in beside_bfloat16.items())
    assert not any(torch.equal(tensor, tensor.bfloat16()) for name, tensor in beside_bfloat16.items() if "_A." in name)


def test_target_modules_narrow_what_is_adapted(model_dir: Path, world: World) -> None:
    adapted = Adapted(lora(model_dir, target_modules=["q_proj"]), world)
    assert {name.split(".")[4] for name in trained_tensors(adapted.model)} == {"q_proj"}


def test_peft_loads_a_written_adapter_and_computes_the_same(model_dir: Path, world: World, tmp_path: Path) -> None:
    adapted = Adapted(lora(model_dir), world, steps=3)
    theirs = logits(PeftModel.from_pretrained(plain(model_dir), adapted.write(tmp_path / "adapter")))
    own = plain(model_dir)
    add_adapter(own, adapted.config.lora.model_copy(update={"path": str(tmp_path / "adapter")}))
    torch.testing.assert_close(theirs, logits(own))
    assert not torch.allclose(theirs, logits(plain(model_dir)), atol=1e-2)


def test_a_checkpoint_holds_the_adapter_alone_and_restores_the_next_steps(
    model_dir: Path, world: World, tmp_path: Path
) -> None:
    first = Adapted(lora(model_dir), world, steps=3)
    write_checkpoint(tmp_path, 3, first.model, first.optimizer)
    [shard] = tmp_path.glob("*.safetensors")
    assert {name.split("/")[0] for name in load_file(shard)} == {"model", "optimizer"}
    assert all(".lora_" in name for name in load_file(shard))
    second = Adapted(lora(model_dir), world)
    load_checkpoint(tmp_path, second.model, second.optimizer)
    assert [first.step(seed) for seed in (3, 4)] == [second.step(seed) for seed in (3, 4)]


def test_merged_weights_compute_what_the_adapter_computes(model_dir: Path, world: World, tmp_path: Path) -> None:
    adapted = Adapted(lora(model_dir), world, steps=3)
    checkpoint, exported = tmp_path / "checkpoint", tmp_path / "exported"
    checkpoint.mkdir()
    exported.mkdir()
    write_checkpoint(checkpoint, 3, adapted.model, adapted.optimizer)
    export_checkpoint(checkpoint, adapted.config, exported, torch.float32)
    merged = plain(exported)
    assert merged.state_dict().keys() == plain(model_dir).state_dict().keys()
    with_adapter = PeftModel.from_pretrained(plain(model_dir), adapted.write(tmp_path / "adapter"))
    torch.testing.assert_close(logits(merged), logits(with_adapter), atol=1e-5, rtol=1e-5)


def test_training_starts_from_an_adapter(model_dir: Path, world: World, tmp_path: Path) -> None:
    first = Adapted(lora(model_dir), world, steps=3)
    path = str(first.write(tmp_path / "adapter"))
    second = Adapted(lora(model_dir, path=path), world)
    for name, tensor in gather_model(first.model).items():
        assert torch.equal(gather_model(second.model)[name], tensor)


SMALL: dict[str, Any] = {
    "vocab_size": 259, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip


MIXTURE = SMALL | {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}


@pytest.mark.parametrize(
    ("config", "adapted"),
    [
        (ApertusConfig(**SMALL), {*ATTENTION, "mlp.up_proj", "mlp.down_proj"}),
        (Qwen3MoeConfig(**MIXTURE, num_experts=4), ATTENTION),
        (
            Glm4MoeConfig(**MIXTURE, n_routed_experts=4),  # whose first layer is dense, and whose others share experts
            ATTENTION | {f"{of}.{name}_proj" for of in ("mlp", "shared_experts") for name in ("gate", "up", "down")},
        ),
    ],
    ids=["apertus", "qwen3_moe", "glm4_moe"],
)
def test_a_published_adapter_holds_a_and_b_of_linear_layers_alone_and_loads_back(
    world: World, tmp_path: Path, config: PreTrainedConfig, adapted: set[str]
) -> None:
    source = tmp_path / "source"
    AutoModelForCausalLM.from_config(config).save_pretrained(source)
    tiny_tokenizer().save_pretrained(source)
    publish_alone(str(source), str(tmp_path), {"model.lora.rank": 8}, PIECE)
    version = tmp_path / "weights" / "step_0"
    names = load_file(version / "adapter_model.safetensors").keys()
    assert {".".join(name.split(".")[-2:]) for name in names} == {"lora_A.weight", "lora_B.weight"}
    layers = {name.rpartition(".lora_")[0] for name in names}
    assert all(any(layer.endswith(f".{name}") for name in adapted) for layer in layers)
    assert all(any(layer.endswith(f".{name}") for layer in layers) for name in adapted)
    told = json.loads((version / "adapter_config.json").read_text())
    assert set(told["target_modules"]) == {name.rpartition(".")[2] for name in adapted}
    add_adapter(plain(source), LoraConfig(rank=8, path=str(version)))


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"rank": 4}, "set model.lora.rank=8"),
        ({"alpha": 4}, "set model.lora.alpha=16"),
        ({"target_modules": ["q_proj"]}, "compare model.lora.target_modules"),
        ({"path": "/nowhere"}, "model.lora.path: /nowhere holds no adapter"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused_with_the_fix(
    model_dir: Path, world: World, tmp_path: Path, values: dict[str, Any], complaint: str
) -> None:
    path = Adapted(lora(model_dir), world).write(tmp_path / "adapter")
    with pytest.raises(AdapterUnsuitable, match=complaint):
        add_adapter(plain(model_dir), LoraConfig(**({"rank": 8, "alpha": 16, "path": str(path)} | values)))


def test_an_adapter_of_another_kind_is_refused(model_dir: Path, world: World, tmp_path: Path) -> None:
    path = Adapted(lora(model_dir), world).write(tmp_path / "adapter")
    config = json.loads((path / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(json.dumps(config | {"use_dora": True}))
    with pytest.raises(AdapterUnsuitable, match="use_dora"):
        add_adapter(plain(model_dir), LoraConfig(rank=8, alpha=16, path=str(path)))


def test_a_model_without_the_target_modules_is_refused(model_dir: Path) -> None:
    with pytest.raises(AdapterUnsuitable, match=r"model\.lora\.target_modules"):
        add_adapter(plain(model_dir), LoraConfig(rank=8, target_modules=["c_attn"]))
