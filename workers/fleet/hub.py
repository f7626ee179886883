"""Names of the hub: what `model.path` and `data.path` may be besides a path, and where what they name lies here.

Nothing of a run has a network, so `fetching` gets it before anything starts.
"""

import os
import re
from pathlib import Path
from typing import Literal

from trainers.run_config import RunConfig
from trainers.run_config.data import DATA_SUFFIXES

Kind = Literal["model", "dataset"]
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def cache() -> Path:
    """Where Hugging Face's libraries keep what they fetched for this account."""
    if found := os.environ.get("HF_HUB_CACHE"):
        return Path(found)
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    return Path(home) / "hub"


def places(name: str, kind: Kind) -> list[Path]:
    """What has to be readable for somebody who loads `name`: a path itself, of a name on the hub what was fetched."""
    if not name:
        return []
    if Path(name).is_absolute() or Path(name).exists():
        return [Path(name)]
    return [cache() / f"{kind}s--{name.replace('/', '--')}"]


def names_of(config: RunConfig) -> list[tuple[Kind, str]]:
    """What a run needs from the hub."""
    wanted: list[tuple[Kind, str]] = [("model", config.model.path), ("model", config.model.lora.path)]
    if config.data is not None:
        wanted.append(("dataset", config.data.path))
        if config.data.validation is not None:
            wanted.append(("dataset", config.data.validation.path))
    return [(kind, name) for kind, name in wanted if _is_on_hub(name)]


def _is_on_hub(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and not name.endswith(DATA_SUFFIXES) and not Path(name).exists()
