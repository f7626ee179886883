"""Names of the hub: what `model.path` and `data.path` may be besides a path, and where what they name lies here.

Nothing of a run has a network, so `fetching` gets it before anything starts.
"""

import os
from pathlib import Path
from typing import Literal

from environments import registry
from environments.chat.files import TOKENIZER
from trainers.run_config import RunConfig
from trainers.run_config.data import dataset_name, is_hub_name

Kind = Literal["model", "dataset"]


def cache() -> Path:
    """Where Hugging Face's libraries keep what they fetched for this account."""
    if found := os.environ.get("HF_HUB_CACHE"):
        return Path(found)
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    return Path(home) / "hub"


def places(name: str, kind: Kind) -> list[Path]:
    """What has to be readable for somebody who loads `name`: a path itself, of a name on the hub what was fetched.

    A path is absolute: what a relative one means depends on who reads it, and where.
    """
    if not name or dataset_name(name) is not None:
        return []
    if Path(name).is_absolute():
        return [Path(name)]
    return [cache() / f"{kind}s--{name.replace('/', '--')}"]


def tokenizer_directory(name: str) -> Path | None:
    """Where the tokenizer of a model lies here, by its path or its name; None: nowhere."""
    for place in places(name, "model"):
        # What a path names is looked at alone: below it others may write what they like.
        for found in [place] if Path(name).is_absolute() else sorted(place.glob("snapshots/*")):
            if os.path.isfile(found / TOKENIZER):  # of what may not be looked at Path's own raises
                return found
    return None


def size_bytes(name: str) -> int:
    """Of the files of a model that lie here, by its path or its name."""
    found = [each for place in places(name, "model") for each in (place, *place.glob("snapshots/*"))]
    return sum(file.stat().st_size for directory in found for file in directory.glob("*") if file.is_file())


def names_of(config: RunConfig) -> list[tuple[Kind, str]]:
    """What a run needs from the hub."""
    wanted: list[tuple[Kind, str]] = [("model", config.model.path), ("model", config.model.lora.path)]
    wanted += [("model", policy.model) for policy in config.frozen.values() if not policy.is_start]
    if config.data is not None:
        wanted.append(("dataset", config.data.path))
        if config.data.validation is not None:
            wanted.append(("dataset", config.data.validation.path))
    wanted += [("dataset", registry.data_of(each.name, each.args)) for each in config.environments]
    return [(kind, name) for kind, name in wanted if is_hub_name(name)]
