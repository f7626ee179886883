"""What counts against the limits of a replica."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from workers.launchers import limits
from workers.launchers.limits import Excess, Limits
from workers.launchers.processes import with_descendants

MIB = 2**20

READY = "os.write(1, b'ready\\n'); sys.stdin.read()"
"""What a program ends with: each process holds what it has until its input is closed."""


@contextmanager
def running(program: str, processes: int = 1) -> Iterator[set[int]]:
    """The processes of a program, each of which has everything it asks for."""
    argv = [sys.executable, "-c", f"import mmap, os, sys\n{program}\n{READY}"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            assert [child.stdout.readline() for _ in range(processes)] == [b"ready\n"] * processes
            yield with_descendants({child.pid})
        finally:
            child.stdin.close()


def excess(pids: set[int], memory_mib: int) -> Excess | None:
    return limits.find_excess(Limits(memory_mib * MIB), pids, Path("/nowhere"))


@pytest.mark.parametrize(
    "program",
    [
        f"held = bytearray({300 * MIB})",
        f"held = mmap.mmap(-1, {300 * MIB}); held.write(bytes({300 * MIB}))",
        f"held = os.memfd_create('x'); os.truncate(held, {300 * MIB}); mmap.mmap(held, 0).write(bytes({300 * MIB}))",
        f"held = os.memfd_create('x'); [os.write(held, bytes({MIB})) for _ in range(300)]",
    ],
    ids=["private", "mapped", "mapped file of memory", "file of memory that is not mapped"],
)
def test_memory_counts_however_it_was_asked_for(program: str) -> None:
    with running(program) as pids:
        found = excess(pids, 200)
        assert found is not None
        assert found.what == "memory"
        assert found.used > 300 * MIB > 200 * MIB == found.allowed
        assert excess(pids, 1000) is None


def test_memory_that_ranks_share_counts_once() -> None:
    shared = f"held = mmap.mmap(-1, {100 * MIB}); held.write(bytes({100 * MIB}))"
    with running(f"{shared}\nos.fork(); os.fork(); sum(held[::4096])", processes=4) as pids:
        assert excess(pids, 300) is None
        found = excess(pids, 100)
        assert found is not None
        assert found.used > 100 * MIB
