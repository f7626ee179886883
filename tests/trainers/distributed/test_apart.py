"""Nodes that share no disk: three of one rank each, and what they wrote of a checkpoint."""

import os
from pathlib import Path
from unittest import mock

import pytest
import torch.distributed as dist

from tests.trainers.crew import Crew
from tests.workers.waiting import eventually
from trainers.distributed import apart
from trainers.distributed.node import APART_VARIABLE

pytestmark = pytest.mark.slow


def move_while_the_last_one_meets(parent: str) -> dict[str, str]:
    """Rank 1 sends its third piece once rank 2, whose turn is after it, has met the others twice since they began."""
    os.environ |= {APART_VARIABLE: "1", "LOCAL_WORLD_SIZE": "1"}
    apart._PIECE_BYTES, apart._BETWEEN_BYTES = 2, 4
    rank, met = dist.get_rank(), Path(parent, "met")
    directory = Path(parent, str(rank))
    directory.mkdir()
    (directory / f"shard-{rank}").write_text(str(rank) * (10 + rank))
    (directory / f"empty-{rank}").touch()
    barrier, send, sent = dist.barrier, apart._send, list[int]()

    def meet() -> None:
        barrier()
        if rank == 2:
            with met.open("a") as file:
                file.write(".")

    def send_slowly(file: Path, begin: int, length: int) -> None:
        if rank == 1 and len(sent) == 2:
            eventually(lambda: met.stat().st_size == 3, what="rank 2 has met the others")
        sent.append(length)
        send(file, begin, length)

    with mock.patch.object(dist, "barrier", meet), mock.patch.object(apart, "_send", send_slowly):
        apart.move_to_first_node(directory)
    return {file.name: file.read_text() for file in directory.iterdir()}


def test_a_node_whose_turn_is_later_meets_the_others_while_they_move_theirs(crew: Crew, tmp_path: Path) -> None:
    moved, *left = crew.call(3, "tests.trainers.distributed.test_apart:move_while_the_last_one_meets", str(tmp_path))
    assert moved == {f"shard-{rank}": str(rank) * (10 + rank) for rank in range(3)} | {
        f"empty-{rank}": "" for rank in range(3)
    }
    assert left == [{}, {}]
