"""What confined programs use, seen from outside. Standard library only.

Looked at several times a second, so only processes below the sandbox's first are read, and pages are divided among
those that share them only where it matters.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from environments.sandbox import nameless
from environments.sandbox.call import Ending, SandboxLimits

_BLOCK_BYTES = 512
"""Of what stat counts in."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def find_excess(limits: SandboxLimits, root: int) -> Ending | None:
    """The first limit that the process `root` and those below it exceed together."""
    pids = [*below(root)]
    # Lists of mappings may be long; where the whole machine has less nobody has to look.
    if _shared_bytes() > limits.memory_bytes and nameless.held(pids) > limits.memory_bytes:
        return "memory"
    # The second sum is dearer: in the first a page that several have counts for each of them.
    if all(sum(map(memory_of, pids)) > limits.memory_bytes for memory_of in (_private_bytes, _proportional_bytes)):
        return "memory"
    return "cpu" if sum(map(_cpu_s, pids)) > limits.cpu_s else None


def below(pid: int) -> Iterator[int]:
    """A process and those below it, each as it is found."""
    left = [pid]
    while left:
        yield (found := left.pop())
        left += children(found)


def children(pid: int) -> list[int]:
    """Ids of a process's children; none of one that is gone."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    except (OSError, ValueError):
        if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):  # a kernel without that
            everyone = [int(name) for name in os.listdir("/proc") if name.isdigit()]
            return [each for each in everyone if _fields(each)[1:2] == [str(pid)]]
    return found


def count_files(directory: int) -> int:
    """Files and directories on the file system that an open directory is the root of."""
    status = os.fstatvfs(directory)
    return status.f_files - status.f_ffree


def unnamed_bytes(root: int, device: int) -> int:
    """In files of a file system that the process `root` and those below it have open, and that no directory names."""
    sizes: dict[int, int] = {}
    for pid in below(root):
        with suppress(OSError):
            for file in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    status = os.stat(f"/proc/{pid}/fd/{file}")
                    if status.st_dev == device and status.st_nlink == 0 and stat.S_ISREG(status.st_mode):
                        sizes[status.st_ino] = status.st_blocks * _BLOCK_BYTES
    return sum(sizes.values())


def _shared_bytes() -> int:
    """Of the whole machine."""
    return sum(_kilobytes("/proc/meminfo", ("Shmem:",))) * 1024


def _private_bytes(pid: int) -> int:
    """With shared memory that it has mapped, whoever else has."""
    return sum(_kilobytes(f"/proc/{pid}/status", ("RssAnon:", "RssShmem:"))) * 1024


def _proportional_bytes(pid: int) -> int:
    shares = [*_kilobytes(f"/proc/{pid}/smaps_rollup", ("Pss_Anon:", "Pss_Shmem:"))]
    return sum(shares) * 1024 if shares else _private_bytes(pid)


def _kilobytes(path: str, names: Iterable[str]) -> Iterator[int]:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return
    for line in lines:
        if line.startswith(tuple(names)):
            yield int(line.split()[1])


def _cpu_s(pid: int) -> float:
    """With those that it started and waited for."""
    return sum(map(int, _fields(pid)[11:15])) / _TICKS_PER_S


def _fields(pid: int) -> list[str]:
    """Of /proc/<pid>/stat from the third (state) on; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
