"""Nodes that share no disk: what the ranks of the others write is moved to the first, from where it is fetched."""

import os
from pathlib import Path

import torch
import torch.distributed as dist

from trainers.distributed.node import APART_VARIABLE

_PIECE_BYTES = 8 * 2**20
_BETWEEN_BYTES = 64 * _PIECE_BYTES
"""After which all ranks meet."""


def are_apart() -> bool:
    """Whether the ranks of other nodes write to other disks."""
    return bool(os.environ.get(APART_VARIABLE)) and _ranks_of_a_node() < dist.get_world_size()


def writers() -> int:
    """How many ranks see the directories in which rank 0 finishes what is written: those from 0 on."""
    return _ranks_of_a_node() if are_apart() else dist.get_world_size()


def make_on_other_nodes(directory: Path) -> None:
    """Make a directory that rank 0 has made for itself. Collective."""
    if are_apart() and dist.get_rank() and dist.get_rank() % _ranks_of_a_node() == 0:
        directory.mkdir(parents=True, exist_ok=True)
    dist.barrier()


def move_to_first_node(directory: Path) -> None:
    """Move the files of a directory from every other node to the first, which then has all of them. Collective.

    A piece of 8 MiB at a time, from one node after another, over the group of all ranks on CPU. All of them meet now
    and then: whoever waits for the whole of it waits for longer than a collective may take.
    """
    if not are_apart():
        return
    dist.barrier()
    rank, size, of_a_node = dist.get_rank(), dist.get_world_size(), _ranks_of_a_node()
    ours = sorted(directory.iterdir()) if rank and rank % of_a_node == 0 else []
    told: list[list[tuple[str, int]]] = [[]] * size
    dist.all_gather_object(told, [(file.name, file.stat().st_size) for file in ours])
    for sender in range(of_a_node, size, of_a_node):
        for name, size_bytes in told[sender]:
            file = directory / Path(name).name
            for begin in range(0, max(1, size_bytes), _BETWEEN_BYTES):
                length = min(_BETWEEN_BYTES, size_bytes - begin)
                if rank == sender:
                    _send(file, begin, length)
                elif rank == 0:
                    _receive(file, begin, length, sender)
                dist.barrier()
    for file in ours:
        file.unlink()


def _send(file: Path, begin: int, length: int) -> None:
    with file.open("rb") as content:
        content.seek(begin)
        for size in _pieces(length):
            dist.send(torch.frombuffer(bytearray(content.read(size)), dtype=torch.uint8), dst=0)


def _receive(file: Path, begin: int, length: int, sender: int) -> None:
    with file.open("ab" if begin else "xb") as content:
        for size in _pieces(length):
            piece = torch.empty(size, dtype=torch.uint8)
            dist.recv(piece, src=sender)
            content.write(piece.numpy().tobytes())


def _pieces(length: int) -> list[int]:
    whole, rest = divmod(length, _PIECE_BYTES)
    return [_PIECE_BYTES] * whole + [rest] * bool(rest)


def _ranks_of_a_node() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
