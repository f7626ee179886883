"""What is written to disk: policy versions that inference can load, and checkpoints that training resumes from.

    weights/step_N/       model in the Hugging Face layout + tokenizer, N optimizer steps behind it; or a LoRA adapter
    checkpoints/step_N/   shard-<rank>-*.safetensors: each rank's part of the weights and of the optimizer, in float32
                          state.json: the format and the step

Checkpoints go through torch.distributed.checkpoint in its safetensors format, so nothing that is loaded can run code
and any number of ranks may resume (docs/decisions/0012). A tensor is named `model/<parameter>`, or
`optimizer/<moment>/<parameter>` for whatever the optimizer keeps. Frozen parameters are not in them: they come from
`model.path`. Data order and randomness are functions of the seed and the step, so they need no file. How a directory
becomes durable: `trainers/storage/durable.py`; how weights are written: `trainers/storage/weights.py`.
"""

import json
import logging
import warnings
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from trainers.distributed.apart import are_apart, move_to_first_node, writers
from trainers.distributed.spread import model_tensors
from trainers.errors import CheckpointCorrupt
from trainers.storage.durable import sync_and_hash, verify_directory
from trainers.storage.shard_file import ShardWriter
from trainers.wire import CheckpointRef

_log = logging.getLogger(__name__)

STATE = "state.json"
_FORMAT = 2
"""Raised when a checkpoint's files change meaning."""
_MODEL, _OPTIMIZER = "model/", "optimizer/"


def trained_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers that training may change."""
    return {
        name: tensor
        for name, tensor in model_tensors(model).items()
        if tensor.requires_grad or not isinstance(tensor, torch.nn.Parameter)
    }


def write_checkpoint(
    directory: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, str]:
    """Fill an empty directory with everything that training needs to go on at `step`; every file is then on the disk.

    Collective: each rank writes its own part; where nodes share no disk, the first has all of them in the end. Returns
    the SHA-256 of every file, on every rank.
    """
    tensors = {_MODEL + name: tensor for name, tensor in trained_tensors(model).items()}
    for name, parameter in model.named_parameters():
        for moment, value in optimizer.state.get(parameter, {}).items():
            if value is not None:  # what SGD without momentum keeps
                tensors[f"{_OPTIMIZER}{moment}/{name}"] = value
    shard = ShardWriter(directory)
    save(tensors, storage_writer=shard)
    move_to_first_node(directory)
    rank, looking = dist.get_rank(), writers()
    if rank == 0:
        (directory / STATE).write_text(json.dumps({"format": _FORMAT, "step": step}), encoding="utf-8")
    known = _gather({} if are_apart() else shard.sha256s)  # what was moved is new on its disk
    left = sorted(path for path in directory.iterdir() if path.name not in known)
    ours = left[rank::looking] if rank < looking else []
    return known | _gather({path.name: sync_and_hash(path) for path in ours})


def _gather(ours: dict[str, str]) -> dict[str, str]:
    """What every rank has. Collective: what was done before it, every rank sees after it."""
    shares: list[dict[str, str]] = [{}] * dist.get_world_size()
    dist.all_gather_object(shares, ours)
    return {name: sha256 for share in shares for name, sha256 in share.items()}


def newest_verified(run: str, checkpoints: Iterable[CheckpointRef]) -> CheckpointRef | None:
    """First of `checkpoints` (newest first) whose every byte is as announced; the others are logged and passed over.

    None where the run has none. Raises CheckpointCorrupt where it has and none verifies: a disk that cannot be read for
    now looks the same as a damaged one, and of a run that began anew the good ones would soon be deleted as old.
    """
    faults = []
    for checkpoint in checkpoints:
        try:
            verify_directory(Path(checkpoint.path), checkpoint.manifest_sha256)
        except CheckpointCorrupt as error:
            _log.warning("checkpoint of step %d is not used: %s", checkpoint.step, error)
            faults.append(error)
        else:
            return checkpoint
    if faults:
        raise CheckpointCorrupt(
            f"none of the checkpoints of run {run} verifies; the newest: {faults[0]}. Once "
            f"`rollyard checkpoints verify {run}` finds one whole, the run goes on from it, or a fork of it does"
        )
    return None


def load_checkpoint(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load a verified checkpoint into a sharded model and its fresh optimizer; every rank reads its part."""
    load_model(path, model)
    load_optimizer(path, model, optimizer)


def load_model(path: Path, model: torch.nn.Module) -> None:
    """Load the weights of a verified checkpoint in place. Raises CheckpointCorrupt when they are of another model.

    Collective, as is `load_optimizer`.
    """
    reader, found = _open(path)
    targets = {_MODEL + name: tensor for name, tensor in trained_tensors(model).items()}
    held = {name: shape for name, (shape, _) in found.items() if name.startswith(_MODEL)}
    expected = {_MODEL + name: shape for name, shape in _trained_shapes(model).items()}
    if different := sorted(name for name, _ in held.items() ^ expected.items()):
        raise CheckpointCorrupt(
            f"{path} holds another model than this one: {different[0].removeprefix(_MODEL)} differs in name or shape, "
            f"{len(different)} tensors in all"
        )
    with torch.no_grad():
        _load(targets, reader)


def load_optimizer(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load the optimizer's state from a verified checkpoint: moments are sharded like their parameter, or scalars.

    Which moments there are is up to the optimizer that wrote them; by name they find their parameter again.
    """
    reader, found = _open(path)
    parameters, trained = dict(model.named_parameters()), _trained_shapes(model)
    targets: dict[str, torch.Tensor] = {}
    for key, (shape, dtype) in found.items():
        if key.startswith(_OPTIMIZER):
            moment, _, name = key.removeprefix(_OPTIMIZER).partition("/")
            if name not in trained:
                raise CheckpointCorrupt(f"{path} holds {moment} of {name}, which this model has not")
            if name not in parameters:
                continue  # another stage of the pipeline has it
            parameter = parameters[name].detach()
            like = shape == parameter.shape
            targets[key] = (
                torch.empty_like(parameter, dtype=dtype)
                if like
                else torch.empty(shape, dtype=dtype, device=parameter.device)
            )
            optimizer.state[parameters[name]][moment] = targets[key]
    _load(targets, reader)


def _trained_shapes(model: torch.nn.Module) -> dict[str, torch.Size]:
    """Of `trained_tensors` on any rank: a stage of a pipeline has but its own."""
    ours = {name: tensor.shape for name, tensor in trained_tensors(model).items()}
    if not dist.is_initialized():
        return ours
    shares: list[dict[str, torch.Size]] = [{}] * dist.get_world_size()
    dist.all_gather_object(shares, ours)
    return {name: shape for share in shares for name, shape in share.items()}


def _open(path: Path) -> tuple[HuggingFaceStorageReader, dict[str, tuple[torch.Size, torch.dtype]]]:
    """A reader of a checkpoint's shards, and the name, shape and type of every tensor in them."""
    form = json.loads((path / STATE).read_bytes())["format"]
    if form != _FORMAT:
        raise CheckpointCorrupt(
            f"{path} has format {form}; this version reads format {_FORMAT}. Resume it with the version that wrote it, "
            "or start a run from its weights (model.path)"
        )
    reader = HuggingFaceStorageReader(str(path))
    entries = reader.read_metadata().state_dict_metadata
    return reader, {name: (entry.size, entry.properties.dtype) for name, entry in entries.items()}  # type: ignore[union-attr]


def _load(targets: dict[str, torch.Tensor], reader: HuggingFaceStorageReader) -> None:
    if not targets:
        return
    with warnings.catch_warnings():
        # An export is one process on purpose.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(targets, storage_reader=reader, no_dist=not dist.is_initialized())
