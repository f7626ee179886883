"""Find and end processes of this machine through /proc. Standard library only: the shepherd imports it.

A process is found by a variable in its environment, not by its parent: vLLM's engine and torchrun's ranks lead
sessions of their own and outlive a parent that was killed. Zombies are never found.
"""

import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

TOKEN_VARIABLE = "ROLLYARD_REPLICA"
"""Environment variable that holds the token of the replica a process belongs to."""
_POLL_S = 0.05
_UNKILLABLE_S = 5.0
"""How long after SIGKILL a process may take to disappear: one in uninterruptible sleep may never do so."""


def start_time(pid: int) -> int | None:
    """Clock ticks after boot at which the process started; None when it is gone or a zombie.

    With the process id it names one process for as long as the machine runs: ids are used again, pairs are not.
    """
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None


def boot_id() -> str:
    """Identify this boot of the machine, so that a record of the last boot's processes fits none of this one's."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def carriers(value: str, variable: str = TOKEN_VARIABLE) -> set[int]:
    """Ids of the processes that were started with this value of the variable, unless told otherwise a replica token."""
    needle = f"\0{variable}={value}\0".encode()
    return {pid for pid in _pids() if needle in b"\0" + _read(f"/proc/{pid}/environ") + b"\0"}


def living_tokens() -> set[str]:
    """Every replica token that some process of this machine carries, of whatever installation."""
    prefix = f"{TOKEN_VARIABLE}=".encode()
    entries = (entry for pid in _pids() for entry in _read(f"/proc/{pid}/environ").split(b"\0"))
    return {entry.removeprefix(prefix).decode(errors="replace") for entry in entries if entry.startswith(prefix)}


def with_cwd(directory: Path, name: str) -> set[int]:
    """Ids of the processes called `name` (15 bytes at most) that work in a directory.

    PostgreSQL writes over its environment with its status line, but every one of its processes sits in its data.
    """
    here = str(directory)
    return {pid for pid in _pids() if _read(f"/proc/{pid}/comm").strip() == name.encode() and _cwd(pid) == here}


def living() -> dict[int, list[int]]:
    """Every living process and its children, by their ids: a look at all of /proc."""
    below: dict[int, list[int]] = {}
    for pid in _pids():
        if (above := parent(pid)) is not None:
            below.setdefault(above, []).append(pid)
    return below


def with_descendants(pids: Collection[int], children: Mapping[int, list[int]] | None = None) -> set[int]:
    """These ids of processes and those of the living processes below them; `children` is what `living` gave."""
    children = living() if children is None else children
    found, frontier = set(pids), list(pids)
    while frontier:
        below = children.get(frontier.pop(), [])
        frontier += below
        found.update(below)
    return found


def children(pid: int) -> set[int]:
    """Ids of the living processes that a process is the parent of."""
    return {each for each in _pids() if parent(each) == pid}


def parent(pid: int) -> int | None:
    """Id of the process above a living one; None when it is gone or a zombie."""
    fields = _stat(pid)
    return int(fields[1]) if fields and fields[0] not in "ZX" else None


def send(pid: int, signum: int, *, started: int | None = None) -> bool:
    """Signal a process, but only the one that started at `started` when that is given. False when it is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # The descriptor pins the process, so the check still holds when the signal leaves.
        if started is not None and start_time(pid) != started:
            return False
        signal.pidfd_send_signal(descriptor, signum)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(descriptor)
    return True


def end(
    find: Callable[[], set[int]],
    deadline_s: float,
    *,
    first: int = signal.SIGTERM,
    each_round: Callable[[], object] = lambda: None,
) -> set[int]:
    """End whatever `find` finds, again and again until it finds nothing: `first`, after `deadline_s` SIGKILL.

    Returns those that did not disappear even so. `each_round` is called between looks; a parent reaps in it.
    """
    asked: set[int] = set()
    begun = time.monotonic()
    while True:
        each_round()
        found = find()
        elapsed = time.monotonic() - begun
        if not found or elapsed > deadline_s + _UNKILLABLE_S:
            return found
        for pid in found if elapsed >= deadline_s else found - asked:
            send(pid, signal.SIGKILL if elapsed >= deadline_s else first)
        asked |= found
        time.sleep(_POLL_S)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _cwd(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    """Fields of /proc/<pid>/stat from the third (state) on; empty when the process is gone."""
    # The second field, the command's name, may hold spaces and brackets: the last bracket ends it.
    return _read(f"/proc/{pid}/stat").decode(errors="replace").rpartition(")")[2].split()


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
