"""Start processes that cannot be orphaned, and find and end everything that one `rollyard up` started.

Two nets. The kernel signals a direct child when we die (`child.py`). Everything below carries ROLLYARD_UP in its
environment, detached replicas too, so a sweep of the process table finds it.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

UP_VARIABLE = "ROLLYARD_UP"
"""Environment variable that holds the id of the `rollyard up` a process belongs to."""
_CHILD = str(Path(__file__).with_name("child.py"))


@dataclass(frozen=True)
class Program:
    """What to start and how to stop it."""

    name: str
    argv: tuple[str, ...]
    stop_signal: signal.Signals = signal.SIGTERM
    stop_deadline_s: float = 10.0
    """Seconds between the stop signal and SIGKILL."""
    account: str = ""
    """System account to run under; "" is ours."""
    environ: Mapping[str, str] | None = None
    """Variables on top of ours."""

    def command(self) -> list[str]:
        """Return the argv that starts the program tied to the calling process. Call it from the main thread:

        the kernel's parent-death signal fires when the *thread* that forked ends.
        """
        shim = [sys.executable, "-I", "-S", _CHILD, str(os.getpid()), str(int(self.stop_signal)), self.account]
        return [*shim, "--", *self.argv]


def child_environ(up_id: str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a child of the `rollyard up` with this id."""
    # setproctitle (Celery and vLLM use it) would otherwise write over the very memory a sweep reads the id from.
    return {**os.environ, "PYTHONUNBUFFERED": "1", "SPT_NOENV": "1", UP_VARIABLE: up_id, **(extra or {})}


def of_up(up_id: str) -> list[psutil.Process]:
    """List the living processes that carry this id, without the caller, and their descendants."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(UP_VARIABLE) == up_id:
                found.update((each.pid, each) for each in [process, *process.children(recursive=True)])
        except (psutil.Error, OSError):
            continue  # ended meanwhile, or belongs to somebody else: then it is not ours
    return [process for process in found.values() if _is_alive(process)]


def with_descendants(pids: Iterable[int]) -> set[int]:
    """Return these process ids and those of everything below them."""
    found: set[int] = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            found |= {pid, *(each.pid for each in psutil.Process(pid).children(recursive=True))}
    return found


def with_cwd(directory: Path, name: str) -> list[psutil.Process]:
    """List the living processes called `name` that work in a directory.

    PostgreSQL writes over its environment with its status line, but every one of its processes sits in its data.
    """
    found = []
    for process in psutil.process_iter():
        try:
            if process.name() == name and process.cwd() == str(directory) and _is_alive(process):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def end(processes: Iterable[psutil.Process], deadline_s: float, first: signal.Signals = signal.SIGTERM) -> int:
    """Signal processes, wait up to the deadline, kill what is left. Returns how many there were."""
    living = list(processes)
    for process in living:
        _send(process, first)
    _, stubborn = psutil.wait_procs(living, timeout=deadline_s)
    for process in stubborn:
        _send(process, signal.SIGKILL)
    psutil.wait_procs(stubborn, timeout=5)
    return len(living)


def sweep(up_id: str, deadline_s: float) -> int:
    """End everything that carries this id; returns how many processes there were.

    Goes round until a look finds nothing: a process may have forked between the look and the signal.
    """
    ended = 0
    give_up_at = time.monotonic() + deadline_s + 10
    while (left := of_up(up_id)) and time.monotonic() < give_up_at:
        ended += end(left, deadline_s)
    return ended


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.Error):  # it ended by itself, which is what we wanted
        process.send_signal(number)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
