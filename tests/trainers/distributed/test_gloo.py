"""Collectives on CPU tensors. What two threads for a group would do is told in `trainers/distributed/gloo.py`."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.trainers.crew import Crew
from tests.workers.waiting import eventually
from trainers.distributed.mesh import World, make_world
from trainers.run_config import TrainerConfig


def test_gpus_that_do_not_work_are_no_reason_to_train_on_cpu(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1c0e")
    with pytest.raises(RuntimeError, match="CUDA does not work with GPU MIG-1c0e"):
        make_world(TrainerConfig(device="auto"))
    for none in ("", "-1", "NoDevFiles"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none)
        assert make_world(TrainerConfig(device="auto")).device.type == "cpu"


def threads(name: str) -> int:
    """How many threads of this process have this name."""
    return sum(task.read_text().strip() == name for task in Path("/proc/self/task").glob("*/comm"))


def await_one_worker_for_each_group() -> int:
    """How many groups of ranks this process is in: gloo has one thread for each that listens, torch those that work."""
    eventually(lambda: threads("pt_gloo_runloop") == threads("gloo_tcp_loop"), what="each group has one that works")
    return threads("gloo_tcp_loop")


def groups_of_a_mesh() -> int:
    """The same, on a rank of a trainer that has used its groups."""
    world = make_world(TrainerConfig(device="cpu", world_size=2, tensor_parallel=2))
    for mesh in (world.layer_mesh, world.rest_mesh):
        for dimension in range(mesh.ndim):
            dist.all_reduce(torch.zeros(1), group=mesh.get_group(dimension))
    return await_one_worker_for_each_group()


def test_a_group_of_ranks_runs_its_collectives_in_a_single_thread(world: World) -> None:
    group = dist.new_group([world.rank])
    try:
        dist.all_reduce(torch.zeros(1), group=group)
        assert await_one_worker_for_each_group() > 1
    finally:
        dist.destroy_process_group(group)


@pytest.mark.slow
def test_every_group_of_a_trainers_mesh_runs_its_collectives_in_a_single_thread(crew: Crew) -> None:
    assert min(crew.call(2, "tests.trainers.distributed.test_gloo:groups_of_a_mesh")) > 1
