"""The processes of one trainer: who am I, on which device, and how the model is sharded over all of us (FSDP2)."""

import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Literal, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel

_COLLECTIVE_TIMEOUT = timedelta(minutes=20)
"""Longer than rank 0 may spend retrying the control plane while the others wait for its broadcast."""


class World(NamedTuple):
    """This process's place among the ranks."""

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh

    @property
    def is_main(self) -> bool:
        """Rank 0 alone talks to the control plane and writes files."""
        return self.rank == 0


def die_with_parent() -> None:
    """Ask Linux to kill this process when torchrun dies: an orphaned rank would hold its device and wait for ever."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the request
        os.kill(os.getpid(), signal.SIGKILL)


def set_cpu_threads(world_size: int) -> None:
    """Use half of the usable cores, shared among the ranks, unless OMP_NUM_THREADS says otherwise.

    The other half is for inference: both saturate memory bandwidth, and a trainer that takes every core starves it.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // (2 * world_size)))


def join_ranks() -> None:
    """Join the process group that torchrun describes in the environment. Collectives on CPU tensors use gloo."""
    set_cpu_threads(int(os.environ["WORLD_SIZE"]))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=_COLLECTIVE_TIMEOUT)


def make_world(device: Literal["auto", "cpu", "cuda"]) -> World:
    """Take this rank's device. `join_ranks` comes first."""
    kind = device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    chosen = torch.device("cpu")
    if kind == "cuda":
        chosen = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(chosen)
    return World(dist.get_rank(), dist.get_world_size(), chosen, init_device_mesh(kind, (dist.get_world_size(),)))


def run_rank(train: Callable[[], None]) -> None:
    """Be one rank of a trainer from start to end: the body of `python -m trainers.<kind>`."""
    die_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
    join_ranks()
    train()
    dist.barrier()
    dist.destroy_process_group()
    logging.shutdown()
    sys.stdout.flush()
    # gloo's threads may still run while the interpreter takes its libraries down, and then abort a rank that succeeded.
    os._exit(0)


def shard(model: PreTrainedModel, mesh: DeviceMesh, dtype: torch.dtype, *, fp32_root: bool) -> None:
    """Shard every decoder layer, then the rest, in place. Parameters stay float32; arithmetic is done in `dtype`.

    `fp32_root` does the arithmetic of the rest (embedding, last norm, output layer) in float32.
    """
    policies = {
        torch.float32: MixedPrecisionPolicy(),
        torch.bfloat16: MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    }
    layer_names = set(model._no_split_modules or ())
    for module in model.modules():
        if type(module).__name__ in layer_names:
            fully_shard(module, mesh=mesh, mp_policy=policies[dtype])
    fully_shard(model, mesh=mesh, mp_policy=policies[torch.float32 if fp32_root else dtype])
    assert isinstance(model, FSDPModule)


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed torch for one step. Randomness depends on nothing else, so a resumed run repeats it with nothing stored."""
    torch.manual_seed((seed * 1_000_003 + step) * 65_537 + rank)
