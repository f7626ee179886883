"""Models that cannot be split are refused by name, before any weight is touched."""

import pytest
import torch
from transformers import LlamaForCausalLM, OlmoConfig, OlmoForCausalLM

from tests.trainers.conftest import tiny_llama_config
from trainers.errors import ModelUnsupported
from trainers.parallel import World
from trainers.run_config import TrainerConfig
from trainers.sharding import shard


def test_an_unknown_architecture_is_refused_by_name(world: World) -> None:
    config = OlmoConfig(vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4)
    with pytest.raises(ModelUnsupported, match=r"not olmo: set trainer\.tensor_parallel to 1"):
        shard(OlmoForCausalLM(config), world, torch.float32, TrainerConfig(tensor_parallel=2))


def test_heads_that_do_not_divide_are_refused(world: World) -> None:
    with pytest.raises(ModelUnsupported, match="num_key_value_heads 2 cannot be split 4 ways"):
        shard(LlamaForCausalLM(tiny_llama_config()), world, torch.float32, TrainerConfig(tensor_parallel=4))
