"""Start processes that cannot be orphaned, and find and end everything that one `rollyard up` started.

Two nets. The kernel signals a direct child when we die (`trainers/child.py`). Everything below carries ROLLYARD_UP in
its environment, detached replicas too, so a sweep of the process table finds it.
"""

import os
import signal
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from trainers import child
from workers.launchers.processes import carriers, end, with_descendants

UP_VARIABLE = "ROLLYARD_UP"
"""Environment variable that holds the id of the `rollyard up` a process belongs to."""

_ANYBODYS = frozenset({"LANG", "LANGUAGE", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ"})


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
    is_ours: bool = True
    """Whether it is our own code, which gets our whole environment. Keys of the hub or of trackers are in there, so
    servers from elsewhere get what any program needs."""

    def command(self) -> list[str]:
        """Return the argv that starts the program tied to the calling process. Call it from the main thread:

        the kernel's parent-death signal fires when the *thread* that forked ends.
        """
        shim = [sys.executable, "-I", "-S", child.__file__, str(os.getpid()), str(int(self.stop_signal)), self.account]
        return [*shim, "--", *self.argv]


def child_environ(up_id: str, program: Program, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a child of the `rollyard up` with this id."""
    if not program.is_ours:
        return {**bare_environ(), UP_VARIABLE: up_id}
    # setproctitle (Celery and vLLM use it) would otherwise write over the very memory a sweep reads the id from.
    ours = {**os.environ, "PYTHONUNBUFFERED": "1", "SPT_NOENV": "1", UP_VARIABLE: up_id}
    return {**ours, **(extra or {}), **(program.environ or {})}


def bare_environ() -> dict[str, str]:
    """Return what any program needs of our environment: where programs and libraries are, language and time."""
    return {name: value for name, value in os.environ.items() if name in _ANYBODYS or name.startswith("LC_")}


def of_up(up_id: str) -> set[int]:
    """Ids of the living processes that carry this id, without the caller, and of their descendants."""
    return with_descendants(carriers(up_id, UP_VARIABLE) - {os.getpid()})


def sweep(up_id: str, deadline_s: float, *, spared: Collection[int] = ()) -> int:
    """End everything that carries this id, except for some and what is below them; returns how many there were."""
    seen: set[int] = set()

    def left() -> set[int]:
        found = of_up(up_id) - with_descendants(spared)
        seen.update(found)
        return found

    end(left, deadline_s)
    return len(seen)
