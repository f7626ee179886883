"""What counts against the limits of a replica."""

import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.workers.waiting import eventually
from workers.fleet import lifecycle
from workers.launchers import confinement, limits
from workers.launchers.base import End, Observation
from workers.launchers.limits import Excess, LimitExceeded, Limits
from workers.launchers.processes import TOKEN_VARIABLE, carriers, with_descendants

MIB = 2**20

needs_sandbox = pytest.mark.skipif(
    bool(confinement.complaint()), reason=f"NO SANDBOX, limits of commands are not tried: {confinement.complaint()}"
)
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
        f"held = mmap.mmap(-1, {300 * MIB}); held.write(bytes({300 * MIB})); held.madvise(mmap.MADV_DONTNEED)",
    ],
    ids=["private", "mapped", "mapped file of memory", "file of memory that is not mapped", "let go of"],
)
def test_memory_counts_however_it_was_asked_for(program: str) -> None:
    with running(program) as pids:
        found = excess(pids, 200)
        assert found is not None
        assert found.what == "bytes of memory"
        assert found.used > 300 * MIB > 200 * MIB == found.allowed
        assert excess(pids, 1000) is None


def test_memory_that_ranks_share_counts_once() -> None:
    shared = f"held = mmap.mmap(-1, {100 * MIB}); held.write(bytes({100 * MIB}))"
    with running(f"{shared}\nos.fork(); os.fork(); sum(held[::4096])", processes=4) as pids:
        assert excess(pids, 300) is None
        found = excess(pids, 100)
        assert found is not None
        assert found.used > 100 * MIB


def run(scratch: Path, program: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    room = confinement.make(scratch)
    return confinement.run(room, [sys.executable, "-c", program], scratch, timeout_s=60, environ=environ)


@needs_sandbox
@pytest.mark.parametrize(
    ("variable", "value", "program"),
    [
        (
            "ROLLYARD_LIMIT_MEMORY_GIB",
            "0.2",
            f"import os, time\nos.fork()\nheld = bytearray({150 * MIB})\ntime.sleep(60)",
        ),
        (
            "ROLLYARD_LIMIT_THREADS",
            "500",  # where we are root, the kernel counts all runs of the machine together
            "import threading, time\nfor _ in range(501): threading.Thread(target=time.sleep, args=(60,)).start()",
        ),
        ("ROLLYARD_LIMIT_LOG_MIB", "1", "while True: print('x' * 1000)"),
    ],
)
def test_a_command_that_exceeds_a_limit_is_ended_with_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, program: str
) -> None:
    monkeypatch.setenv(variable, value)
    token = str(uuid.uuid4())
    with pytest.raises(LimitExceeded) as raised:
        run(tmp_path / "scratch", program, **{TOKEN_VARIABLE: token})
    found = raised.value.excess
    assert found.setting == variable
    assert found.used > found.allowed
    eventually(lambda: not carriers(token))


@needs_sandbox
def test_of_what_a_command_writes_the_end_is_kept(tmp_path: Path) -> None:
    told = "import sys\nsys.stdout.buffer.write(b'\\xff' * 2**20 + b'end')\nsys.stderr.write('!' * 2**20 + 'sorry')"
    done = run(tmp_path / "scratch", told)
    assert (done.returncode, done.stdout[-3:], done.stderr[-5:]) == (0, "end", "sorry")
    assert len(done.stdout) == len(done.stderr) == 64 * 2**10


@pytest.mark.parametrize("end", End)
def test_however_a_replica_ends_its_reason_can_be_told(end: End) -> None:
    excess = Excess("threads", 5, 3, limits.THREADS)._asdict() if end is End.LIMIT else {}
    reason = lifecycle.reason_of(Observation(False, -9, 1.0, end, excess), words="its last words")
    assert str(reason)
    assert ("5 threads, of 3" in str(reason)) == (end is End.LIMIT)
