"""Tensors that are spread over the ranks, read whole and in order by any of them, of which none ever holds much.

    SpreadTensors(tensors, world, dtypes)   names, shapes and number formats, of all stages
    .pieces()                               name after name, each tensor's elements in order, at most PIECE at once
    .give()                                 the other ranks' part in that

A tensor of a few elements travels whole. A larger one, whose rows are split over ranks, goes round from one of them
after the other. One that is split in another way, as tensor parallelism splits some matrices of a layer, is put
together first.
"""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard

from trainers.distributed.mesh import World

PIECE = 2**24
"""Elements: 32 MiB in bfloat16."""


class _Piece(NamedTuple):
    """Elements `begin` to `end` of what rank `source` has, among the ranks that the tensor's rows are split over."""

    source: int
    begin: int
    end: int


class _Entry(NamedTuple):
    """A tensor and the first stage that has it."""

    stage: int
    shape: torch.Size
    dtype: torch.dtype
    """In which it is read."""
    lengths: list[int]
    """Of its pieces, in elements."""


def model_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers that files of a model hold, each once even where modules share it."""
    tensors: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        tensors.setdefault(id(tensor), (name, tensor))  # tied weights come under every name they have
    return dict(tensors.values())


def exact_names(model: torch.nn.Module) -> set[str]:
    """Which of `model_tensors` are computed with in float32 where the rest is rounded: those of which the model says so
    and all buffers, which no gradient moves."""
    kept = [glob.replace("*", ".*") for glob in getattr(model, "_keep_in_fp32_modules_strict", None) or ()]
    return {
        name
        for name, tensor in model_tensors(model).items()
        if not isinstance(tensor, torch.nn.Parameter) or any(re.search(pattern, name) for pattern in kept)
    }


class SpreadTensors:
    """Tensors of which this rank has a share, or none where another stage has them.

    Every rank makes one at the same time, of its own tensors, and all of them read it together: one calls `pieces` or
    `whole`, the others `give`. A tensor is read in the number format that `dtypes` has for it, or in its own.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        world: World | None = None,
        dtypes: Mapping[str, torch.dtype] = MappingProxyType({}),
    ) -> None:
        self._tensors, self._world = tensors, world
        stage = world.stage if world else 0
        ours = {
            name: _Entry(stage, each.shape, dtypes.get(name, each.dtype), _lengths(each))
            for name, each in tensors.items()
        }
        shares = [ours]
        if world is not None and world.stages > 1:
            shares *= world.stages
            dist.all_gather_object(shares, ours, group=world.stage_group)
        self._entries: dict[str, _Entry] = {}
        for share in shares:
            for name, entry in share.items():
                self._entries.setdefault(name, entry)

    @property
    def empty(self) -> dict[str, torch.Tensor]:
        """All tensors without their elements, in the order in which they come."""
        return {
            name: torch.empty(entry.shape, dtype=entry.dtype, device="meta") for name, entry in self._entries.items()
        }

    def pieces(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and flat CPU tensors that are not to be changed."""
        for name, entry in self._entries.items():
            world = self._world
            if world is None or world.stages == 1:
                yield from ((name, piece) for piece in _gather(self._tensors[name], entry.dtype))
                continue
            ours = _gather(self._tensors[name], entry.dtype) if world.stage == entry.stage else None
            for length in entry.lengths:
                piece = torch.empty(length, dtype=entry.dtype) if ours is None else next(ours)
                dist.broadcast(piece, group=world.stage_group, group_src=entry.stage)
                yield name, piece

    def whole(self) -> dict[str, torch.Tensor]:
        """All tensors at once, on CPU, in the memory of all of them."""
        found = {name: torch.empty(0) for name in self._entries}
        pieces: dict[str, list[torch.Tensor]] = {}
        for name, piece in self.pieces():
            pieces.setdefault(name, []).append(piece)
            if len(pieces[name]) == len(self._entries[name].lengths):
                found[name] = torch.cat(pieces.pop(name)).view(self._entries[name].shape)
        return found

    def give(self) -> None:
        """Take part in what another rank reads."""
        for _ in self.pieces():
            pass


def _plan(tensor: torch.Tensor) -> list[_Piece] | None:
    """The pieces of a tensor in the order of its elements; None where it comes in one."""
    ranks = 1
    if isinstance(tensor, DTensor):
        if (dimension := _row_dimension(tensor)) is None:
            return None
        ranks = tensor.device_mesh.size(dimension)
    if tensor.numel() <= PIECE:
        return None
    rows, width = tensor.shape[0], tensor.shape[1:].numel()
    most = -(-rows // ranks)  # as torch.chunk splits them
    held = [max(0, min(most, rows - source * most)) * width for source in range(ranks)]
    return [
        _Piece(source, begin, min(begin + PIECE, count))
        for source, count in enumerate(held)
        for begin in range(0, count, PIECE)
    ]


def _lengths(tensor: torch.Tensor) -> list[int]:
    plan = _plan(tensor)
    return [tensor.numel()] if plan is None else [piece.end - piece.begin for piece in plan]


def _row_dimension(tensor: DTensor) -> int | None:
    """The mesh dimension over which the rows of a tensor are split, if it is split over that one alone."""
    split = [dimension for dimension, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    if len(split) == 1 and tensor.placements[split[0]] == Shard(0):
        return split[0]
    return None


def _gather(tensor: torch.Tensor, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """The pieces of a tensor, on every rank that has a share of it, once all of them are asked for the next."""
    tensor, plan = tensor.detach(), _plan(tensor)
    if plan is None:
        converted = tensor.to(dtype)
        whole = converted.full_tensor() if isinstance(converted, DTensor) else converted
        yield whole.cpu().flatten()
        return
    share, group, ours = tensor, None, 0
    if isinstance(tensor, DTensor):
        dimension = _row_dimension(tensor)
        assert dimension is not None
        share, ours = tensor.to_local(), tensor.device_mesh.get_local_rank(dimension)
        group = tensor.device_mesh.get_group(dimension)
    share = share.flatten()
    for piece in plan:
        if piece.source == ours:
            content = share[piece.begin : piece.end].to(dtype)
        else:
            content = torch.empty(piece.end - piece.begin, dtype=dtype, device=share.device)
        if group is not None:
            dist.broadcast(content, group=group, group_src=piece.source)
        yield content.cpu()
