"""What ranks say to each other beside what the control plane says to them."""

from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist

from tests.trainers.control_plane import RUN, FakeControlPlane, serving
from tests.trainers.crew import Crew
from tests.trainers.support import random_batch, rl_config
from tests.workers.waiting import eventually
from trainers import link, rl
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


def train_with_a_slow(module: str, name: str, heard: str) -> None:
    """Rank 0 gets through the function once the other rank has heard of it twice, and so waits in no collective until
    it is through."""
    link._LOOK_S = 0.01
    owner, file = resolve_name(module), Path(heard)
    work, broadcast = getattr(owner, name), RunLink.broadcast

    def work_slowly(*args: Any, **kwargs: Any) -> Any:
        since = file.stat().st_size
        eventually(lambda: file.stat().st_size > since + 2, what="the other rank has heard that this one is at work")
        return work(*args, **kwargs)

    def hear(number: int) -> int:
        told = broadcast(number)
        if dist.get_rank():
            with file.open("a") as sounds:
                sounds.write(".")
        return told

    with mock.patch.object(owner, name, work_slowly), mock.patch.object(RunLink, "broadcast", staticmethod(hear)):
        rl.train()


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("trainers.learner", "newest_verified"),
        ("trainers.learner", "find_directory"),
        ("trainers.learner", "save_weights"),
        ("trainers.learner", "hash_and_seal"),
        ("trainers.client:ControlPlane", "announce_policy_version"),
        ("trainers.client:ControlPlane", "announce_checkpoint"),
    ],
)
def test_ranks_hear_that_rank_zero_is_still_at_what_takes_long(
    crew: Crew, model_dir: Path, tmp_path: Path, owner: str, name: str
) -> None:
    (heard := tmp_path / "heard").touch()
    plane = FakeControlPlane(rl_config(model_dir, max_steps=2, trainer__checkpoint_every=1), tmp_path)
    plane.make_batch = random_batch
    with serving(plane) as url:
        environment = {"ROLLYARD_URL": url, "ROLLYARD_TOKEN": "t", "ROLLYARD_RUN": RUN}
        function = "tests.trainers.distributed.test_link:train_with_a_slow"
        crew.call(2, function, owner, name, str(heard), environment=environment)
    assert plane.finished


def rank_zeros_number() -> int:
    return RunLink.broadcast(7 + dist.get_rank())


def test_every_rank_hears_the_number_of_the_first(crew: Crew) -> None:
    assert crew.call(2, "tests.trainers.distributed.test_link:rank_zeros_number") == [7, 7]
