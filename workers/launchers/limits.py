"""What one replica may use of the machine, watched from outside its sandbox. Standard library only.

Who started it looks several times a second and kills what exceeds its limits, with the reason: a cap inside the process
would only make an allocation fail somewhere in a library. Some stay with the kernel as backstops, for a fork bomb is
faster than any look.
"""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from environments.sandbox import nameless
from workers.launchers.processes import with_descendants

LOOK_EVERY_S = 0.25
MEMORY = "ROLLYARD_LIMIT_MEMORY_GIB"
THREADS = "ROLLYARD_LIMIT_THREADS"
LOG = "ROLLYARD_LIMIT_LOG_MIB"
_MEMORY_SHARE = 0.9
_GIB = 2**30


class Excess(NamedTuple):
    """A limit that was exceeded."""

    what: str
    """What is counted: bytes of memory, threads, bytes of log."""
    used: int
    allowed: int
    setting: str
    """The variable of the environment that allows more."""


class LimitExceeded(RuntimeError):
    """A command used more than it may."""

    def __init__(self, excess: Excess) -> None:
        super().__init__(f"it used {excess.used:,} {excess.what}, of {excess.allowed:,} that {excess.setting} allows")
        self.excess = excess


@dataclass(frozen=True)
class Limits:
    """Of a replica: all its processes together."""

    memory_bytes: int
    """Private memory, and shared memory once. Of /dev/shm and /tmp, which have sizes of their own, what is mapped."""
    threads: int = 32_768
    open_files: int = 65_536
    """Of each process."""
    log_bytes: int = 1 * _GIB
    memory_setting: str = MEMORY
    """What allows more memory."""


def default() -> Limits:
    """What the variables of the environment say; memory is else nine tenths of the machine's."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    memory_gib = os.environ.get(MEMORY)
    return Limits(
        memory_bytes=int(float(memory_gib) * _GIB) if memory_gib else int(machine * _MEMORY_SHARE),
        threads=int(os.environ.get(THREADS) or Limits.threads),
        log_bytes=int(os.environ.get(LOG) or Limits.log_bytes // 2**20) * 2**20,
    )


def backstops(limits: Limits) -> None:
    """Limit this process and what it starts: open files, threads of its account, no core files. Between fork and exec.

    As root the threads of all runs count together; in a user namespace those of this sandbox.
    """
    _lower(resource.RLIMIT_NOFILE, limits.open_files)
    _lower(resource.RLIMIT_NPROC, 2 * limits.threads)  # beyond, so that the look comes first and gives the reason
    _lower(resource.RLIMIT_CORE, 0)


def capping(limits: Limits) -> list[str]:
    """The beginning of a command line that gives what follows it the same backstops.

    For who starts something from a process of many threads, where no code may run between fork and exec.
    """
    words = [
        f"--nofile={_allowed(resource.RLIMIT_NOFILE, limits.open_files)}",
        f"--nproc={_allowed(resource.RLIMIT_NPROC, 2 * limits.threads)}",
    ]
    return ["prlimit", *words, "--core=0", "--"]


def attend(
    child: "subprocess.Popen[bytes]",
    limits: Limits,
    log: Collection[Path],
    timeout_s: float,
    look: Callable[[], None] = lambda: None,
) -> None:
    """Wait until a child has ended; `look` is called all the while. Raises LimitExceeded, subprocess.TimeoutExpired and
    what `look` does, and leaves the child as it is then."""
    give_up_at = time.monotonic() + timeout_s
    while True:
        left_s = give_up_at - time.monotonic()
        try:
            child.wait(min(max(left_s, 0), LOOK_EVERY_S))
        except subprocess.TimeoutExpired:
            if left_s <= LOOK_EVERY_S:
                raise
        else:
            return
        if excess := find_excess(limits, with_descendants({child.pid}), *log):
            raise LimitExceeded(excess)
        look()


def find_excess(limits: Limits, pids: Collection[int], *log: Path) -> Excess | None:
    """The first limit that these processes, and the files of their log, exceed."""
    private = threads = 0
    for pid in pids:
        pages, count = _use(pid)
        private += pages * os.sysconf("SC_PAGE_SIZE")
        threads += count
    memory = private + _shared(pids, limits.memory_bytes - private)
    found = (
        Excess("bytes of memory", memory, limits.memory_bytes, limits.memory_setting),
        Excess("threads", threads, limits.threads, THREADS),
        Excess("bytes of log", sum(_size(file) for file in log), limits.log_bytes, LOG),
    )
    return next((excess for excess in found if excess.used > excess.allowed), None)


def _use(pid: int) -> tuple[int, int]:
    """Private pages in memory, and threads; nothing of one that is gone."""
    try:
        _, resident, shared, *_rest = Path(f"/proc/{pid}/statm").read_text().split()
        threads = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[17]
    except (OSError, ValueError, IndexError):
        return 0, 0
    return int(resident) - int(shared), int(threads)


def _shared(pids: Collection[int], room: int) -> int:
    """Bytes of shared memory that these processes hold. Where they fit into `room` it may be more than that.

    Each bound is closer than the one before, and dearer: for the last the kernel walks through all their pages.
    """
    bounds: tuple[Callable[[], int], ...] = (
        lambda: _bytes("/proc/meminfo", "Shmem", else_=sys.maxsize),
        lambda: sum(_mapped(pid) for pid in pids) + nameless.held(pids),
        # The larger, not both: what has no name may be mapped too.
        lambda: max(sum(_proportion(pid) for pid in pids), nameless.held(pids)),
    )
    used = 0
    for bound in bounds:
        if (used := bound()) <= room:
            break
    return used


def _mapped(pid: int) -> int:
    """Shared memory that a process has mapped, whoever else has."""
    return _bytes(f"/proc/{pid}/status", "RssShmem", else_=0)


def _proportion(pid: int) -> int:
    """The same, each page divided by how many have it mapped: ranks that share a segment have it once between them."""
    mapped = _mapped(pid)
    return _bytes(f"/proc/{pid}/smaps_rollup", "Pss_Shmem", else_=mapped) if mapped else 0


def _bytes(path: str, name: str, *, else_: int) -> int:
    """What a file of /proc gives in kB under a name, and something else where it does not."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return else_
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), else_)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _lower(kind: int, value: int) -> None:
    value = _allowed(kind, value)
    resource.setrlimit(kind, (value, value))


def _allowed(kind: int, value: int) -> int:
    _, hard = resource.getrlimit(kind)
    return value if hard == resource.RLIM_INFINITY else min(value, hard)
