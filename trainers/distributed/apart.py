"""Nodes that share no disk: what the ranks of the others write is moved to the first, from where it is fetched."""

import os
from pathlib import Path

import torch
import torch.distributed as dist

from trainers.distributed.node import APART_VARIABLE

_CHUNK_BYTES = 8 * 2**20


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

    A piece of 8 MiB at a time, from one node after another, over the group of all ranks on CPU.
    """
    if not are_apart():
        return
    dist.barrier()
    rank = dist.get_rank()
    for sender in range(_ranks_of_a_node(), dist.get_world_size(), _ranks_of_a_node()):
        if rank == sender:
            files = sorted(directory.iterdir())
            dist.send_object_list([[(file.name, file.stat().st_size) for file in files]], dst=0)
            for file in files:
                _send(file)
                file.unlink()
        elif rank == 0:
            told: list[list[tuple[str, int]]] = [[]]
            dist.recv_object_list(told, src=sender)
            for name, size in told[0]:
                _receive(directory / Path(name).name, size, sender)
    dist.barrier()


def _send(file: Path) -> None:
    with file.open("rb") as content:
        while chunk := content.read(_CHUNK_BYTES):
            dist.send(torch.frombuffer(bytearray(chunk), dtype=torch.uint8), dst=0)


def _receive(file: Path, size: int, sender: int) -> None:
    with file.open("xb") as content:
        while size:
            chunk = torch.empty(min(size, _CHUNK_BYTES), dtype=torch.uint8)
            dist.recv(chunk, src=sender)
            content.write(chunk.numpy().tobytes())
            size -= len(chunk)


def _ranks_of_a_node() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
