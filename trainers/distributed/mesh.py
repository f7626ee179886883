"""The processes of one trainer: ranks, devices, and the device mesh that work and model are split over.

All ranks form one mesh of five dimensions, the outermost first:

    pipeline    each rank has a range of the decoder's layers, a stage
    replicate   copies of the sharded model; they exchange gradients only (HSDP)
    shard       parameters, gradients and optimizer state are sharded over it (FSDP2)
    context     each rank has a slice of every micro-batch's tokens (context parallel)
    tensor      each rank has a slice of every layer's heads and widths (tensor parallel)

Ranks that differ in `replicate` or `shard` train on different micro-batches; ranks that differ only in the other
dimensions share theirs. Neighbouring ranks differ in the last dimensions, which communicate most.
"""

import faulthandler
import gc
import json
import logging
import math
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from environments import disk
from trainers.child import die_with_parent
from trainers.distributed.gloo import SERIAL_GLOO, register_serial_gloo
from trainers.distributed.meeting import MeetingStore
from trainers.distributed.node import MEETING_VARIABLE
from trainers.errors import InputFault
from trainers.run_config import TrainerConfig

FAULT_VARIABLE = "ROLLYARD_FAULT_FILE"
"""Names the file in which a replica leaves why another start would fare no better."""
_COLLECTIVE_TIMEOUT = timedelta(minutes=20)
"""Longer than rank 0 may spend retrying the control plane while the others wait for its broadcast."""

_DIMENSIONS = ("pipeline", "replicate", "shard", "context", "tensor")


class World(NamedTuple):
    """This process's place among the ranks."""

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh
    """pipeline x replicate x shard x context x tensor."""

    @property
    def is_main(self) -> bool:
        """Rank 0 alone talks to the control plane and writes files."""
        return self.rank == 0

    @property
    def data_size(self) -> int:
        """How many sets of micro-batches are trained on side by side."""
        return self.mesh["replicate"].size() * self.mesh["shard"].size()

    @property
    def data_rank(self) -> int:
        """Which of these sets is this rank's."""
        return self.mesh["replicate"].get_local_rank() * self.mesh["shard"].size() + self.mesh["shard"].get_local_rank()

    @property
    def scorers(self) -> int:
        """How many ranks compute the scores of each micro-batch: on the last stage, all of `context` and `tensor`."""
        return self.mesh["context"].size() * self.mesh["tensor"].size()

    @property
    def stages(self) -> int:
        """How many ranges of layers there are."""
        return self.mesh["pipeline"].size()

    @property
    def stage(self) -> int:
        """Which of them is this rank's."""
        return self.mesh["pipeline"].get_local_rank()

    @property
    def is_last_stage(self) -> bool:
        """Here scores and losses are computed."""
        return self.stage == self.stages - 1

    @property
    def stage_group(self) -> dist.ProcessGroup:
        """The ranks that hold the other stages for this rank's micro-batches, and this one."""
        return self.mesh.get_group("pipeline")

    @property
    def layer_mesh(self) -> DeviceMesh:
        """The ranks that hold the decoder layers' shards: all that differ not only in `tensor`."""
        return self._sharding_mesh("shard", "context")

    @property
    def rest_mesh(self) -> DeviceMesh:
        """The ranks that hold the shards of what tensor parallelism does not split: all."""
        return self._sharding_mesh("shard", "context", "tensor")

    @property
    def context_group(self) -> dist.ProcessGroup | None:
        """The ranks that share this rank's micro-batches slice by slice; None where a rank has them whole."""
        return self.mesh.get_group("context") if self.mesh["context"].size() > 1 else None

    def _sharding_mesh(self, *dimensions: str) -> DeviceMesh:
        flat = self.mesh[dimensions]._flatten()
        if self.mesh["replicate"].size() == 1:
            return flat
        name = flat.mesh_dim_names
        assert name is not None
        return self.mesh["replicate", name[0]]


def set_cpu_threads(local_ranks: int) -> None:
    """Use half of the usable cores, shared among this node's ranks, unless OMP_NUM_THREADS says otherwise.

    The other half is for inference: both saturate memory bandwidth, and a trainer that takes every core starves it.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // (2 * local_ranks)))


def join_ranks() -> None:
    """Join the process group that the environment describes: torchrun's on one node, `node.py`'s on several.

    On CPU tensors: `gloo.py`.
    """
    set_cpu_threads(int(os.environ["LOCAL_WORLD_SIZE"]))
    register_serial_gloo()
    backend = f"cpu:{SERIAL_GLOO},cuda:nccl" if torch.cuda.is_available() else SERIAL_GLOO
    meeting = os.environ.get(MEETING_VARIABLE)
    at_socket = meeting is not None and Path(meeting).is_socket()
    dist.init_process_group(
        backend,
        init_method=None if at_socket else f"file://{meeting}" if meeting else "env://",
        store=MeetingStore(Path(str(meeting))) if at_socket else None,
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=_COLLECTIVE_TIMEOUT,
    )


def make_world(config: TrainerConfig) -> World:
    """Take this rank's device and place in the mesh. `join_ranks` comes first.

    Raises ValueError when the ranks that torchrun started cannot be arranged as the config asks, RuntimeError for GPUs
    none of which works: nobody wants to see days later that a run trains on CPU.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    # -1 says none, as NoDevFiles of SLURM does.
    is_given = given and not given.startswith(("-", "NoDevFiles"))
    if config.device == "auto" and is_given and not torch.cuda.is_available():
        raise RuntimeError(f"CUDA does not work with GPU {given}: see nvidia-smi, or set trainer.device to 'cpu'")
    kind = config.device if config.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    chosen = torch.device("cpu")
    if kind == "cuda":
        chosen = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(chosen)
    size, inner = dist.get_world_size(), (config.context_parallel, config.tensor_parallel)
    together = config.pipeline_parallel * config.replicas * math.prod(inner)
    if size % together:
        raise ValueError(f"{size} processes cannot be arranged: start a multiple of {together}, see trainer.world_size")
    shape = (config.pipeline_parallel, config.replicas, size // together, *inner)
    world = World(dist.get_rank(), size, chosen, init_device_mesh(kind, shape, mesh_dim_names=_DIMENSIONS))
    if world.stages > 2:  # NCCL wants a whole group in its first call; a message between two stages is not that
        dist.all_reduce(torch.zeros((), device=chosen), group=world.stage_group)
    return world


def run_rank(train: Callable[[], None]) -> None:
    """Be one rank of a trainer from start to end: the body of `python -m trainers.<kind>`."""
    gc.freeze()  # what is loaded stays
    gc.enable()
    die_with_parent()  # torchrun: an orphaned rank would hold its device and wait for ever
    faulthandler.enable()  # a crash in native code says which line was running, on every thread
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
    join_ranks()
    try:
        train()
    except InputFault as fault:
        _leave_fault(str(fault))
        raise
    dist.barrier()
    dist.destroy_process_group()
    logging.shutdown()
    sys.stdout.flush()
    # gloo's threads may still run while the interpreter takes its libraries down, and then abort a rank that succeeded.
    os._exit(0)


def _leave_fault(message: str) -> None:
    """Tell whoever started the trainer that another start would end the same: torchrun hides how a rank exits.

    The file is complete or absent; of several ranks any may be the last to write it.
    """
    if path := os.environ.get(FAULT_VARIABLE):
        disk.write_file(Path(path), json.dumps({"message": message}).encode())


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed torch for one step. Randomness depends on nothing else, so a resumed run repeats it with nothing stored."""
    torch.manual_seed(((seed * 1_000_003 + step) * 65_537 + rank) % 2**64)  # torch refuses more bits
