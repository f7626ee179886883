"""What ranks say to each other beside what the control plane says to them."""

from pathlib import Path

import pytest
import torch.distributed as dist

from tests.trainers.crew import Crew
from tests.workers.waiting import eventually
from trainers.link import RunLink

pytestmark = pytest.mark.slow


def see_what_the_other_wrote(directory: str) -> bool:
    """Rank 0 goes to the barrier; rank 1 writes only then, and comes after. Whether the file is there afterwards."""
    waiting, written = Path(directory, "waiting"), Path(directory, "written")
    if dist.get_rank() == 0:
        waiting.touch()
    else:
        eventually(waiting.exists, what="rank 0 is at the barrier")
        written.touch()
    RunLink.barrier()
    return written.exists()


def test_no_rank_passes_a_barrier_before_the_last_has_come(crew: Crew, tmp_path: Path) -> None:
    assert crew.call(2, "tests.trainers.distributed.test_link:see_what_the_other_wrote", str(tmp_path)) == [True, True]


def rank_zeros_number() -> int:
    return RunLink.broadcast(7 + dist.get_rank())


def test_every_rank_hears_the_number_of_the_first(crew: Crew) -> None:
    assert crew.call(2, "tests.trainers.distributed.test_link:rank_zeros_number") == [7, 7]
