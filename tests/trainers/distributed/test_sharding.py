"""Models that cannot be split are refused by name, before any weight is touched; of others, stages hold every part."""

import copy
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM, OlmoConfig, OlmoForCausalLM

from tests.trainers.conftest import tiny_llama_config
from trainers.distributed import sharding
from trainers.distributed.mesh import World
from trainers.distributed.sharding import keep_stage, shard
from trainers.errors import ModelUnsupported
from trainers.model.policy import load_policy, score_tokens
from trainers.packing import micro_batch, training_sequence
from trainers.run_config import ModelConfig, TrainerConfig


class Place(NamedTuple):
    """What of a World says which layers are a rank's."""

    stage: int
    stages: int

    @property
    def is_last_stage(self) -> bool:
        return self.stage == self.stages - 1


def tiny_llama(layers: int, *, tied: bool) -> LlamaForCausalLM:
    config = tiny_llama_config(layers)
    config.tie_word_embeddings = tied
    return LlamaForCausalLM(config)


def test_an_unknown_architecture_is_refused_by_name(world: World) -> None:
    config = OlmoConfig(vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4)
    with pytest.raises(ModelUnsupported, match=r"not olmo: set trainer\.tensor_parallel to 1"):
        shard(OlmoForCausalLM(config), world, torch.float32, TrainerConfig(tensor_parallel=2))
    with pytest.raises(ModelUnsupported, match=r"not olmo: set trainer\.pipeline_parallel to 1"):
        keep_stage(OlmoForCausalLM(config), cast(World, Place(0, 2)))


def test_heads_that_do_not_divide_are_refused(world: World) -> None:
    with pytest.raises(ModelUnsupported, match="num_key_value_heads 2 cannot be split 4 ways"):
        shard(LlamaForCausalLM(tiny_llama_config()), world, torch.float32, TrainerConfig(tensor_parallel=4))


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ModelUnsupported, match=r"2 layers cannot fill 3 stages: lower trainer\.pipeline_parallel"):
        keep_stage(tiny_llama(2, tied=False), cast(World, Place(0, 3)))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("stages", [2, 3, 5])
def test_stages_hold_every_part_once_under_its_name_and_tied_embeddings_at_both_ends(tied: bool, stages: int) -> None:
    whole = [name for name, _ in tiny_llama(5, tied=tied).named_parameters()]
    held: list[str] = []
    layers = []
    for stage in range(stages):
        model = tiny_llama(5, tied=tied)
        keep_stage(model, cast(World, Place(stage, stages)))
        held += [name for name, _ in model.named_parameters()]
        layers.append(len({name.split(".")[2] for name, _ in model.named_parameters() if ".layers." in name}))
    assert sorted(held) == sorted(whole + ["model.embed_tokens.weight"] * tied)
    assert max(layers) - min(layers) <= 1


@pytest.mark.parametrize("kind", sharding.SPLITTABLE)
def test_tokens_pass_through_the_stages_of_every_known_model_as_through_the_whole(kind: str) -> None:
    options = tiny_llama_config(layers=3).to_diff_dict()
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**options | {"model_type": kind}))
    tokens = torch.arange(20)[None]
    hidden, inputs = model.base_model(tokens).last_hidden_state, {"input_ids": tokens}
    for stage in range(3):
        part = copy.deepcopy(model)
        keep_stage(part, cast(World, Place(stage, 3)))
        inputs = {"inputs_embeds": part.base_model(**inputs).last_hidden_state}
    assert torch.equal(inputs["inputs_embeds"], hidden)


def test_offload_moves_the_inputs_of_layers_and_nothing_else(
    model_dir: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[tuple[int, ...]] = []

    class Counted(torch.autograd.graph.save_on_cpu):
        def __init__(self, pin_memory: bool) -> None:
            super().__init__(pin_memory)
            pack = self.pack_hook
            self.pack_hook = lambda tensor: (moved.append(tuple(tensor.shape)), pack(tensor))[1]

    monkeypatch.setattr(sharding, "save_on_cpu", Counted)
    config = TrainerConfig(device="cpu", activation_checkpointing=True, activation_offload=True)
    model = load_policy(ModelConfig(path=str(model_dir)), world, config)
    batch = micro_batch([training_sequence(np.arange(30), np.ones(30), 64)])
    score_tokens(model, batch, 1.0).logprobs_K.sum().backward()
    assert moved == [(1, 30, model.config.hidden_size)] * model.config.num_hidden_layers
