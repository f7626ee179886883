"""Published weights are byte for byte what transformers writes of the whole model, wherever its parts are."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Ernie4_5_MoeConfig,
    Gemma3Config,
    Glm4MoeConfig,
    GPT2Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from tests.trainers.crew import Crew
from tests.trainers.support import in_bfloat16
from trainers.distributed import spread
from trainers.distributed.mesh import World
from trainers.model.policy import DTYPES, load_policy, load_tokenizer
from trainers.model.tiny import tiny_tokenizer
from trainers.run_config import ModelConfig
from trainers.storage import weights
from trainers.storage.weights import spread_weights, write_weights

PIECE = 2000
"""Elements; most matrices of the tiny models have more."""
MIXTURE: dict[str, Any] = {
    "vocab_size": 259, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
}  # fmt: skip


def written_whole(model_dir: Path, directory: Path, dtype: torch.dtype, **options: Any) -> dict[str, bytes]:
    """What transformers alone makes of the model, by file."""
    AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype).save_pretrained(directory, **options)
    load_tokenizer(ModelConfig(path=str(model_dir))).save_pretrained(directory)
    return contents(directory)


def contents(directory: Path) -> dict[str, bytes]:
    """Every file, configs without the order of their keys."""
    found = {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "manifest.json"}
    return found | {"config.json": json.dumps(json.loads(found["config.json"]), sort_keys=True).encode()}


def written(model: PreTrainedModel, model_dir: Path, directory: Path, dtype: torch.dtype) -> dict[str, bytes]:
    directory.mkdir()
    tokenizer = load_tokenizer(ModelConfig(path=str(model_dir)))
    write_weights(directory, model, spread_weights(model, None, dtype), tokenizer, dtype)
    return contents(directory)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("source", ["float32", "bfloat16"])
def test_pieces_make_the_files_that_transformers_makes_of_the_whole(
    model_dir: Path, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, dtype: torch.dtype
) -> None:
    path = model_dir if source == "float32" else in_bfloat16(model_dir, tmp_path / "source")
    monkeypatch.setattr(spread, "PIECE", PIECE)
    found = written(load_policy(ModelConfig(path=str(path)), world), path, tmp_path / "found", dtype)
    assert found == written_whole(path, tmp_path / "whole", dtype)


def test_a_model_of_several_files_has_those_of_transformers_and_its_index(
    llama_dir: Path, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "_MAX_FILE", "200KB")
    model = load_policy(ModelConfig(path=str(llama_dir)), world)
    found = written(model, llama_dir, tmp_path / "found", torch.float32)
    assert len([name for name in found if name.endswith(".safetensors")]) > 2
    assert found == written_whole(llama_dir, tmp_path / "whole", torch.float32, max_shard_size="200KB")


def test_experts_that_are_one_tensor_in_the_model_are_written_as_many(tmp_path: Path) -> None:
    config = Qwen3MoeConfig(**MIXTURE, num_experts=4)
    source = tmp_path / "source"
    Qwen3MoeForCausalLM(config).save_pretrained(source)
    tiny_tokenizer().save_pretrained(source)
    transformers.utils.logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(source)
    found = written(model, source, tmp_path / "found", torch.bfloat16)
    assert b"experts.3.down_proj" in found["model.safetensors"]
    assert found == written_whole(source, tmp_path / "whole", torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False], ids=["tied embeddings", "an output layer of its own"])
@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (2, {}),
        (2, {"trainer.replicas": 2}),
        (2, {"trainer.tensor_parallel": 2}),
        (2, {"trainer.pipeline_parallel": 2}),
        (3, {}),
    ],
    ids=["shard 2", "replicas 2", "tensor 2", "pipeline 2", "shard 3"],
)
def test_no_rank_holds_more_than_its_share_and_a_piece_and_what_they_publish_is_the_model(
    crew: Crew, model_dir: Path, llama_dir: Path, tmp_path: Path, tied: bool, ranks: int, options: dict[str, Any]
) -> None:
    model = in_bfloat16(model_dir if tied else llama_dir, tmp_path / "source")
    options |= {"model.dtype": "bfloat16", "trainer.world_size": ranks}
    held = crew.call(ranks, "tests.trainers.publish_alone:publish_alone", str(model), str(tmp_path), options, PIECE)
    published = contents(tmp_path / "weights" / "step_0")
    assert published == written_whole(model, tmp_path / "whole", DTYPES["bfloat16"])
    largest = max(p.numel() for p in AutoModelForCausalLM.from_pretrained(model).parameters())
    split = 1 if "trainer.replicas" in options or "trainer.pipeline_parallel" in options else ranks
    row = 128
    for rank in held:
        assert rank["loading_bytes"] <= 4 * (largest / split + row)  # in float32
        if "trainer.tensor_parallel" not in options:
            assert rank["publishing_bytes"] <= 4 * PIECE


def test_a_version_keeps_the_dropout_that_its_training_did_without(
    model_dir: Path, world: World, tmp_path: Path
) -> None:
    settings = GPT2Config(vocab_size=256, n_embd=32, n_layer=1, n_head=2, resid_pdrop=0.2)
    AutoModelForCausalLM.from_config(settings).save_pretrained(tmp_path / "start")
    model = load_policy(ModelConfig(path=str(tmp_path / "start")), world, dropout=False)
    assert (model.config.resid_pdrop, model.config.embd_pdrop) == (0.0, 0.0)
    written(model, model_dir, tmp_path / "version", torch.float32)
    kept = AutoConfig.from_pretrained(tmp_path / "version")
    assert (kept.resid_pdrop, kept.embd_pdrop) == (0.2, 0.1)


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_a_version_keeps_sampling_values_that_stand_without_do_sample(
    model_dir: Path, tmp_path: Path, file: str
) -> None:
    source = tmp_path / "source"
    shutil.copytree(model_dir, source)
    (source / "generation_config.json").unlink()
    before = json.loads((source / file).read_text()) if (source / file).exists() else {}
    (source / file).write_text(json.dumps(before | {"temperature": 0.9, "top_p": 0.6}))
    model = AutoModelForCausalLM.from_pretrained(source)
    found = written(model, source, tmp_path / "version", torch.float32)
    told = json.loads(found["generation_config.json"])
    assert (told["temperature"], told["top_p"]) == (0.9, 0.6)
    assert model.generation_config.temperature == 0.9


def test_a_version_has_what_the_processor_of_its_start_model_is_loaded_from(tmp_path: Path) -> None:
    source, version = tmp_path / "source", tmp_path / "version"
    size = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**size, "vocab_size": 270, "num_key_value_heads": 2, "head_dim": 16}
    sees = {**size, "image_size": 28, "patch_size": 14}
    config = Gemma3Config(text_config=text, vision_config=sees, mm_tokens_per_image=4, image_token_index=262)
    AutoModelForCausalLM.from_config(config).save_pretrained(source)
    tiny_tokenizer().save_pretrained(source)
    processors = {"processor_config.json": b'{"a": 1}', "preprocessor_config.json": b'{"b": 2}'}
    for name, content in processors.items():
        (source / name).write_bytes(content)
    (source / "notes.json").write_text("{}")
    found = written(AutoModelForCausalLM.from_pretrained(source), source, version, torch.bfloat16)
    assert {name: found.get(name) for name in processors} == processors
    assert "notes.json" not in found


@pytest.mark.parametrize(
    "config",
    [
        Glm4MoeConfig(**MIXTURE, n_routed_experts=4),  # the bias is a buffer
        Ernie4_5_MoeConfig(**MIXTURE, moe_num_experts=4, moe_k=2),  # the bias and the router are parameters
    ],
    ids=lambda config: config.model_type,
)
def test_what_decides_which_experts_are_chosen_is_published_to_the_last_bit(
    tmp_path: Path, config: PreTrainedConfig
) -> None:
    source = tmp_path / "source"
    model = AutoModelForCausalLM.from_config(config)
    biases = {name: tensor for name, tensor in model.state_dict().items() if "e_score_correction_bias" in name}
    for bias in biases.values():
        bias.normal_()
    model.save_pretrained(source)
    tiny_tokenizer().save_pretrained(source)
    written(AutoModelForCausalLM.from_pretrained(source), source, tmp_path / "version", torch.bfloat16)
    stored = load_file(tmp_path / "version" / "model.safetensors")
    before = load_file(source / "model.safetensors")
    assert biases
    assert stored.keys() == before.keys()
    for name, tensor in before.items():
        exact = "e_score_correction_bias" in name or (config.model_type == "ernie4_5_moe" and "gate.weight" in name)
        assert torch.equal(stored[name], tensor if exact else tensor.bfloat16()), name
        assert stored[name].dtype == (torch.float32 if exact else torch.bfloat16), name
