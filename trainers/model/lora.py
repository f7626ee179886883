"""LoRA: W x + (alpha / rank) B A x with W frozen (arXiv:2106.09685, equation 3), by PEFT, in PEFT's format on disk.

    adapter_config.json           rank, alpha, target modules
    adapter_model.safetensors     base_model.model.<layer>.lora_A.weight [rank, in], ...lora_B.weight [out, rank]

A parameter is called `<layer>.lora_A.default.weight` in the model. A starts out random and B zero, so a fresh adapter
changes nothing.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers.pytorch_utils import Conv1D

from trainers.errors import AdapterUnsuitable
from trainers.run_config import LoraConfig

_log = logging.getLogger(__name__)

_CONFIG, _TENSORS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_NAME_IN_MODEL = ".default.weight"
_UNKNOWN = "model"
_FOREIGN = ("use_dora", "use_rslora", "modules_to_save", "rank_pattern", "alpha_pattern", "layers_to_transform")
"""Kinds of adapters that are not made of A and B alone, or not alike in every layer."""


def add_adapter(model: torch.nn.Module, config: LoraConfig) -> None:
    """Freeze the model and give its target modules an adapter, in place: `config.path`'s, or a fresh one.

    Of them only linear layers get one, and each that is called so. Comes before sharding. A is drawn from torch's
    global generator: seed it alike on every rank. Raises AdapterUnsuitable.
    """
    # Here, since it takes a third of a second, and most runs have no adapter.
    from peft import LoraConfig as PeftLoraConfig
    from peft import inject_adapter_in_model

    # In a model that it knows for a mixture, PEFT would take the names for those of experts, which are one tensor here
    # and in no adapter that vLLM loads.
    unknown = torch.nn.ModuleDict({_UNKNOWN: model})
    peft_config = PeftLoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=[f"{_UNKNOWN}.{name}" for name in _targets(model, config.target_modules)],
        task_type="CAUSAL_LM",
    )
    with _seen_as_float32(model):
        inject_adapter_in_model(peft_config, unknown)
    if config.path:
        _load(model, config)


def adapter_tensors(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """What of a model with an adapter is trained: the adapter, and none of the model's buffers."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def write_adapter(
    directory: Path, config: LoraConfig, base: str, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype
) -> None:
    """Fill `directory` with an adapter that PEFT and vLLM load. `tensors` are full, under their names in the model."""
    adapted = {name.partition(".lora_")[0] for name in tensors}
    description: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": config.dropout,
        "target_modules": [target for target in config.target_modules if _called(target, adapted)],
        "bias": "none",
        "inference_mode": True,
    }
    (directory / _CONFIG).write_text(json.dumps(description, indent=2), encoding="utf-8")
    renamed = {_name_on_disk(name): tensor.to(dtype).contiguous() for name, tensor in tensors.items()}
    save_file(renamed, directory / _TENSORS, metadata={"format": "pt"})


def merge_adapter(model: torch.nn.Module) -> None:
    """Add the adapter to the weights beside it and take it away, in place: what is left is the model as it was loaded.

    For a model in one piece; in float32 nothing is lost but rounding.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in list(model.named_modules()):
        if isinstance(module, BaseTunerLayer):
            module.merge()
            model.set_submodule(name, module.get_base_layer())


def _targets(model: torch.nn.Module, names: Iterable[str]) -> list[str]:
    """Linear layers that are called by one of the names, in full. Raises AdapterUnsuitable where there are none."""
    linear = [name for name, module in model.named_modules() if isinstance(module, (torch.nn.Linear, Conv1D))]
    found = {target: _called(target, linear) for target in names}
    if not any(found.values()):
        known = ", ".join(sorted({name.rpartition(".")[2] for name in linear} - {"lm_head"}))
        raise AdapterUnsuitable(
            f"model.lora.target_modules: {type(model).__name__} has no linear layer called {' or '.join(found)}. "
            f"Name some of {known}"
        )
    if absent := [target for target, layers in found.items() if not layers]:
        _log.warning("no linear layer is called %s: none of them gets an adapter", " or ".join(absent))
    wanted = set().union(*found.values())
    return [name for name in linear if name in wanted]


def _called(target: str, modules: Iterable[str]) -> list[str]:
    return [name for name in modules if f".{name}".endswith(f".{target}")]


@contextmanager
def _seen_as_float32(model: torch.nn.Module) -> Iterator[None]:
    """PEFT gives an adapter the number format of the weights beside it: let these be empty and float32 meanwhile."""
    held = [(parameter, parameter.data) for parameter in model.parameters()]
    for parameter, data in held:
        parameter.data = torch.zeros((), device=data.device).expand(data.shape)
    try:
        yield
    finally:
        for parameter, data in held:
            parameter.data = data


def _load(model: torch.nn.Module, config: LoraConfig) -> None:
    directory = Path(config.path)
    try:
        found = json.loads((directory / _CONFIG).read_bytes())
        tensors = load_file(directory / _TENSORS)
    except (OSError, ValueError) as error:
        raise AdapterUnsuitable(f"model.lora.path: {directory} holds no adapter: {error}") from None
    if foreign := [key for key in _FOREIGN if found.get(key)]:
        raise AdapterUnsuitable(f"model.lora.path: {directory} uses {', '.join(foreign)}, which is not supported")
    for key, theirs, ours in (("rank", found.get("r"), config.rank), ("alpha", found.get("lora_alpha"), config.alpha)):
        if theirs != ours:
            raise AdapterUnsuitable(f"{directory} has {key} {theirs}: set model.lora.{key}={theirs} (it is {ours})")
    parameters = adapter_tensors(model)
    expected = {_name_on_disk(name): value.shape for name, value in parameters.items()}
    if different := sorted(name for name, _ in {k: v.shape for k, v in tensors.items()}.items() ^ expected.items()):
        raise AdapterUnsuitable(
            f"{directory} does not fit: {different[0]} and {len(different) - 1} more differ in name or shape. It has "
            f"target modules {found.get('target_modules')}: compare model.lora.target_modules and model.path"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[_name_on_disk(name)])


def _name_on_disk(name: str) -> str:
    return f"{_PREFIX}{name.removesuffix(_NAME_IN_MODEL)}.weight"
