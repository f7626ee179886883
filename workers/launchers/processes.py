"""Find and end processes of this machine through /proc. Standard library only: the shepherd imports it.

A process is found by what it carries in its environment, not by its parent: vLLM's engine and torchrun's ranks lead
sessions of their own and outlive a parent that was killed.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

TOKEN_VARIABLE = "ROLLYARD_REPLICA"
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


def carriers(token: str) -> set[int]:
    """Ids of the processes that were started with this replica token in their environment."""
    needle = f"\0{TOKEN_VARIABLE}={token}\0".encode()
    return {pid for pid in _pids() if needle in b"\0" + _read(f"/proc/{pid}/environ") + b"\0"}


def living_tokens() -> set[str]:
    """Every replica token that some process of this machine carries, of whatever installation."""
    prefix = f"{TOKEN_VARIABLE}=".encode()
    entries = (entry for pid in _pids() for entry in _read(f"/proc/{pid}/environ").split(b"\0"))
    return {entry.removeprefix(prefix).decode(errors="replace") for entry in entries if entry.startswith(prefix)}


def descendants(ancestor: int) -> set[int]:
    """Ids of the living processes below `ancestor`."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        if (fields := _stat(pid)) and fields[0] not in "ZX":
            children.setdefault(int(fields[1]), []).append(pid)
    found: set[int] = set()
    frontier = [ancestor]
    while frontier:
        below = children.get(frontier.pop(), [])
        frontier += below
        found.update(below)
    return found


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
    find: Callable[[], set[int]], deadline_s: float, *, each_round: Callable[[], object] = lambda: None
) -> set[int]:
    """End whatever `find` finds, again and again until it finds nothing: SIGTERM, after `deadline_s` SIGKILL.

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
            send(pid, signal.SIGKILL if elapsed >= deadline_s else signal.SIGTERM)
        asked |= found
        time.sleep(_POLL_S)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> list[str]:
    """Fields of /proc/<pid>/stat from the third (state) on; empty when the process is gone."""
    # The second field, the command's name, may hold spaces and brackets: the last bracket ends it.
    return _read(f"/proc/{pid}/stat").decode(errors="replace").rpartition(")")[2].split()


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
