"""Collectives on CPU tensors: gloo with one worker thread for each process group.

torch gives every group of gloo's two. Each of them, when it has run a collective, writes the collective's name into one
string of the group and takes no lock for it (`ProcessGroupGloo::runLoop` as of torch 2.13). "ALLGATHER_COALESCED", the
way in which DTensor gathers, is too long to be kept inside the string: two threads that write at once free the same
buffer twice, and the rank dies later, wherever its heap is used next. A thread must lose its core between two
instructions for that, so a busy machine needs some hundred thousand collectives. With one thread there is nobody to
race with, and a group's collectives run in the order in which they were asked for.
"""

import os
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import ProcessGroupGloo
from torch.distributed.distributed_c10d import Store

SERIAL_GLOO = "serial_gloo"
"""Name of the backend, known to torch once `register_serial_gloo` has been called."""


def register_serial_gloo() -> None:
    """Make SERIAL_GLOO a backend that `init_process_group` can name; groups derived from that one have it too."""
    dist.Backend.register_backend(SERIAL_GLOO, _create, devices=["cpu"])


def _create(store: Store, rank: int, size: int, timeout: timedelta) -> ProcessGroupGloo:
    interfaces = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]  # as torch reads it
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # its stubs leave the underscores out
    options._devices = [ProcessGroupGloo.create_device(interface=name) for name in interfaces] or [
        ProcessGroupGloo.create_default_device()
    ]
    options._threads = 1
    options._timeout = timeout
    group = ProcessGroupGloo(store, rank, size, options)
    group._set_sequence_number_for_group()
    return group
