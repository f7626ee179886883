"""Models for tests that load none: files that config and tokenizer load from, and weights that only have a header."""

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from django.conf import settings
from safetensors.numpy import save_file

from rollouts.models import Model, ModelOrigin, Project, Run
from rollouts.services import models
from tests.factories import make_project

TENSORS = {"model.embed_tokens.weight": [4, 8], "model.norm.weight": [8]}
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 4,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "c": 2, "<end>": 3}, "unk_token": "a"},
}


def write_model(directory: Path, **config: Any) -> Path:
    """A directory that passes every check of a launch: 40 parameters, 4 tokens, a chat template."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG | config))
    (directory / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (directory / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    write_weights(directory / "model.safetensors", TENSORS)
    return directory


@cache
def whole_model() -> Path:
    """A directory that passes every check of a launch, and is no run's. All tests of a process share it, which is so
    looked at once: that takes a process and two seconds."""
    place = tempfile.mkdtemp(prefix="rollyard-whole-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return write_model(Path(place) / "model")


def write_weights(path: Path, shapes: dict[str, list[int]]) -> None:
    """A safetensors file of zeros."""
    save_file({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, path, metadata={"format": "pt"})


def make_warm(project: Project | None = None) -> Model:
    """The model that the preset reverse-text-rl starts from. All share its files too."""
    return make_model(project or make_project(), "reverse-text-warm", Path(settings.ROLLYARD_HOME) / "warm")


def make_model(project: Project, name: str, directory: Path, *, run: Run | None = None, **columns: Any) -> Model:
    """A row of the registry; the files are written unless they are there."""
    if not (directory / "config.json").exists():
        write_model(directory)
    if run is None:
        return models.add(project=project, name=name, source=str(directory), user=None)
    origin = {"origin": ModelOrigin.TRAINED, "run": run, "step": run.next_step}
    return Model.objects.create(project=project, name=name, source=str(directory), **origin, **columns)
