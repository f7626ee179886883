"""What is written to disk: policy versions that inference can load, and checkpoints that training resumes from.

    weights/step_N/       model in the Hugging Face layout + tokenizer, N optimizer steps behind it
    checkpoints/step_N/   model.safetensors and optimizer.safetensors in float32, state.json

Everything is safetensors or JSON: nothing that is loaded can run code. Data order and randomness are functions of the
seed and the step, so they need no file. Full tensors are gathered to rank 0, hence a checkpoint may be resumed by any
number of ranks. How a directory becomes durable: `trainers/durable.py`.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trainers.durable import verify_directory
from trainers.errors import CheckpointCorrupt
from trainers.wire import CheckpointRef

_log = logging.getLogger(__name__)

_MODEL, _OPTIMIZER, _STATE = "model.safetensors", "optimizer.safetensors", "state.json"
_FORMAT = 1
"""Raised when a checkpoint's files change meaning."""


def gather_model(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Full float32 tensors on CPU, each once even where modules share it. Collective: every rank must call it."""
    tensors: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:  # tied weights come under every name they have
            seen.add(id(tensor))
            tensors[name] = _full(tensor)
    return tensors


def gather_optimizer(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """AdamW's state as `<moment>/<parameter>` -> full tensor on CPU. Collective: every rank must call it."""
    return {
        f"{moment}/{name}": _full(value)
        for name, parameter in model.named_parameters()
        for moment, value in optimizer.state.get(parameter, {}).items()
    }


def write_weights(
    directory: Path,
    model: PreTrainedModel,
    tensors: Mapping[str, torch.Tensor],
    tokenizer: PreTrainedTokenizerBase,
    dtype: torch.dtype,
) -> None:
    """Fill `directory` with a model that vLLM and transformers load. `tensors` come from `gather_model`."""
    model.save_pretrained(directory, state_dict={name: tensor.to(dtype) for name, tensor in tensors.items()})
    tokenizer.save_pretrained(directory)
    config_path = directory / "config.json"
    config = json.loads(config_path.read_bytes())
    config["dtype"] = str(dtype).removeprefix("torch.")  # save_pretrained names the master weights' type
    config_path.write_text(json.dumps(config, indent=2), encoding="utf-8")


def write_checkpoint(
    directory: Path, step: int, model_tensors: dict[str, torch.Tensor], optimizer_tensors: dict[str, torch.Tensor]
) -> None:
    """Fill `directory` with everything that training needs to go on at `step`."""
    save_file(model_tensors, directory / _MODEL)
    save_file(optimizer_tensors, directory / _OPTIMIZER)
    (directory / _STATE).write_text(json.dumps({"format": _FORMAT, "step": step}), encoding="utf-8")


def newest_verified(checkpoints: Iterable[CheckpointRef]) -> CheckpointRef | None:
    """First of `checkpoints` (newest first) whose every byte is as announced; the others are logged and passed over."""
    for checkpoint in checkpoints:
        try:
            verify_directory(Path(checkpoint.path), checkpoint.manifest_sha256)
        except CheckpointCorrupt as error:
            _log.warning("checkpoint of step %d is not used: %s", checkpoint.step, error)
        else:
            return checkpoint
    return None


def load_checkpoint(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load a verified checkpoint into a sharded model and its fresh optimizer; every rank reads its part."""
    state = json.loads((path / _STATE).read_bytes())
    if state["format"] != _FORMAT:
        raise CheckpointCorrupt(f"{path} has format {state['format']}; this version reads format {_FORMAT}")
    tensors, seen = load_file(path / _MODEL), set()
    with torch.no_grad():
        for name, tensor in model.state_dict(keep_vars=True).items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                tensor.copy_(_like(tensors[name], tensor))
    moments: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in load_file(path / _OPTIMIZER).items():
        moment, _, name = key.partition("/")
        moments.setdefault(name, {})[moment] = tensor
    for name, parameter in model.named_parameters():
        if name in moments:
            optimizer.state[parameter] = {
                moment: _like(tensor, parameter) if tensor.ndim else tensor.to(parameter.device)
                for moment, tensor in moments[name].items()
            }


def _full(tensor: torch.Tensor) -> torch.Tensor:
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.detach().cpu().contiguous()


def _like(whole: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """`whole` on the device of `target`, sharded like it; no communication, every rank has read all of it."""
    whole = whole.to(target.device)
    if isinstance(target, DTensor):
        sharded = distribute_tensor(whole, target.device_mesh, target.placements, src_data_rank=None)
        return sharded.to(target.device)  # which is not the mesh's when shards are kept in main memory
    return whole
