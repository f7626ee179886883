"""Tensors that are spread over the ranks, read whole and in order by any of them, of which none ever holds much.

    SpreadTensors(tensors, world)   names and shapes, of all stages
    .pieces(dtype)                  name after name, each tensor's elements in order, at most PIECE at once
    .give(dtype)                    the other ranks' part in that

A tensor of a few elements travels whole. A larger one, whose rows are split over ranks, goes round from one of them
after the other. One that is split in another way, as tensor parallelism splits some matrices of a layer, is put
together first.
"""

from collections.abc import Iterator, Mapping
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
    lengths: list[int]
    """Of its pieces, in elements."""


class SpreadTensors:
    """Tensors of which this rank has a share, or none where another stage has them.

    Every rank makes one at the same time, of its own tensors, and all of them read it together: one calls `pieces` or
    `whole`, the others `give`.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], world: World | None = None) -> None:
        self._tensors, self._world = tensors, world
        stage = world.stage if world else 0
        ours = {name: _Entry(stage, each.shape, each.dtype, _lengths(each)) for name, each in tensors.items()}
        shares = [ours]
        if world is not None and world.stages > 1:
            shares *= world.stages
            dist.all_gather_object(shares, ours, group=world.stage_group)
        self._entries: dict[str, _Entry] = {}
        for share in shares:
            for name, entry in share.items():
                self._entries.setdefault(name, entry)

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Of all tensors, in the order in which they come."""
        return {name: entry.shape for name, entry in self._entries.items()}

    def pieces(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and flat CPU tensors that are not to be changed, in `dtype` or their own."""
        for name, entry in self._entries.items():
            wanted, world = dtype or entry.dtype, self._world
            if world is None or world.stages == 1:
                yield from ((name, piece) for piece in _gather(self._tensors[name], wanted))
                continue
            ours = _gather(self._tensors[name], wanted) if world.stage == entry.stage else None
            for length in entry.lengths:
                piece = torch.empty(length, dtype=wanted) if ours is None else next(ours)
                dist.broadcast(piece, group=world.stage_group, group_src=entry.stage)
                yield name, piece

    def whole(self, dtype: torch.dtype | None = None) -> dict[str, torch.Tensor]:
        """All tensors at once, on CPU, in the memory of all of them."""
        found = {name: torch.empty(0) for name in self._entries}
        pieces: dict[str, list[torch.Tensor]] = {}
        for name, piece in self.pieces(dtype):
            pieces.setdefault(name, []).append(piece)
            if len(pieces[name]) == len(self._entries[name].lengths):
                found[name] = torch.cat(pieces.pop(name)).view(self._entries[name].shape)
        return found

    def give(self, dtype: torch.dtype | None = None) -> None:
        """Take part in what another rank reads."""
        for _ in self.pieces(dtype):
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
