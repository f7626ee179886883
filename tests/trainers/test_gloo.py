"""Collectives on CPU tensors. What two threads for a group would do is told in `trainers/distributed/gloo.py`."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from trainers.distributed.mesh import World

_RANK = """
from tests.trainers.test_gloo import workers_of_groups
from trainers.distributed.mesh import make_world, run_rank
from trainers.run_config import TrainerConfig

def show_workers():
    make_world(TrainerConfig(device="cpu", world_size=2, tensor_parallel=2)).layer_mesh
    print(*workers_of_groups())

run_rank(show_workers)
"""


def workers_of_groups() -> list[int]:
    """How many threads run the collectives of each group of ranks that this process is in."""
    groups = list(dist.distributed_c10d._world.pg_map)
    return [group._get_backend(torch.device("cpu")).options._threads for group in groups]


def test_a_group_of_ranks_runs_its_collectives_in_a_single_thread(world: World) -> None:
    group = dist.new_group([world.rank])
    try:
        workers = workers_of_groups()
        assert len(workers) > 1
        assert set(workers) == {1}
    finally:
        dist.destroy_process_group(group)


@pytest.mark.slow
def test_every_group_of_a_trainers_mesh_runs_its_collectives_in_a_single_thread(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(_RANK, encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    ran = subprocess.run(torchrun, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    ranks = [line.split() for line in ran.stdout.splitlines()]
    assert len(ranks) == 2
    assert all(len(workers) > 1 and set(workers) == {"1"} for workers in ranks), ran.stdout
