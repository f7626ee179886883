"""A tiny model on disk, and one process that is a whole world."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from trainers.parallel import World, make_world
from trainers.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model with its tokenizer."""
    directory = tmp_path_factory.mktemp("tiny") / "model"
    write_tiny_model(directory)
    return directory


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """This process as the only rank, on CPU."""
    torch.set_num_threads(1)
    store = dist.HashStore()
    os.environ.setdefault("LOCAL_RANK", "0")
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield make_world("cpu")
    dist.destroy_process_group()
