"""LoRA adapters as inference servers need them.

A server of a LoRA run serves the frozen model under a name of its own and the policy as an adapter beside it. vLLM
fixes which adapters there are when it starts, so it starts with one that changes nothing; policy versions replace it.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from trainers.run_config import LORA_RANKS, LoraConfig

CONFIG_FILE = "adapter_config.json"


def is_adapter(path: Path) -> bool:
    """Whether a directory holds an adapter in PEFT's format, and not a whole model."""
    return (path / CONFIG_FILE).is_file()


def room_for(config: LoraConfig) -> int:
    """The rank a server has to reserve room for: vLLM knows only some."""
    return next(rank for rank in LORA_RANKS if rank >= config.rank)


def write_idle_adapter(directory: Path, config: LoraConfig) -> None:
    """Make a directory with an adapter that changes no weight, without knowing the model.

    vLLM refuses one without tensors, so it has those of a layer beyond any model's last, which it then has no use for.
    """
    directory.mkdir(parents=True, exist_ok=True)
    layer = f"base_model.model.model.layers.{2**31 - 1}.{config.target_modules[0]}"
    tensors = {f"{layer}.lora_{side}.weight": np.zeros((1, 1), np.float32) for side in "AB"}
    save_file(tensors, directory / "adapter_model.safetensors")
    description = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": [config.target_modules[0]]}
    (directory / CONFIG_FILE).write_text(json.dumps(description), encoding="utf-8")
