"""How many processors this process may use: on a node of a cluster, or in a container, not all of the machine's."""

import os
from contextlib import suppress
from math import ceil
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Of a container, as it sees itself: microseconds of processors in a period, or `max`."""


def count() -> int:
    """Those that it may run on, that its container is given time of, and that SLURM gave its job here."""
    bounds = [len(os.sched_getaffinity(0))]
    with suppress(OSError, ValueError):  # no container, or no bound
        quota, period = map(int, _QUOTA.read_text().split())
        bounds.append(ceil(quota / period))
    with suppress(KeyError, ValueError):  # no job
        bounds.append(int(os.environ["SLURM_CPUS_ON_NODE"]))
    return max(1, min(bounds))
