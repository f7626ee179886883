"""A tiny model on disk, one process that is a whole world, and a crew of ranks."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

from tests.trainers.crew import Crew
from trainers.distributed.gloo import SERIAL_GLOO, register_serial_gloo
from trainers.distributed.mesh import World, make_world
from trainers.model.tiny import tiny_tokenizer, write_tiny_model
from trainers.run_config import TrainerConfig


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model with its tokenizer."""
    directory = tmp_path_factory.mktemp("tiny") / "model"
    write_tiny_model(directory)
    return directory


def tiny_llama_config(layers: int = 2) -> LlamaConfig:
    """Unlike the tiny Qwen3: an output layer of its own, fewer key heads than query heads, no norms on either."""
    return LlamaConfig(
        vocab_size=259,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )


@pytest.fixture(scope="session")
def llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with the same tokenizer."""
    directory = tmp_path_factory.mktemp("tiny") / "llama"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(tiny_llama_config(layers=4)).save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """This process as the only rank, on CPU."""
    torch.set_num_threads(1)
    store = dist.HashStore()
    os.environ.setdefault("LOCAL_RANK", "0")
    register_serial_gloo()
    dist.init_process_group(SERIAL_GLOO, store=store, rank=0, world_size=1)
    yield make_world(TrainerConfig(device="cpu"))
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """Ranks that compute what tests ask, without a start for each."""
    crew = Crew(tmp_path_factory.mktemp("crew"))
    yield crew
    crew.stop()
