"""A sandbox of an engine that shows a directory of the machine to its program. Linux only."""

import os
import shutil
import signal
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from environments import disk
from environments.sandbox import owner, usage
from environments.sandbox.call import Ending, SandboxCall
from environments.sandbox.cell import Cell
from environments.sandbox.program import SandboxUnavailable

_BLOCK_BYTES = 512
"""Of what stat counts in."""
_ROUNDS = 1_000
"""Of looking for what has to end: who forks faster than that is left to the engine's own end."""


class HostCell(Cell):
    """Its directory is on the disk: what lies there is looked at, and no file may be larger than all together."""

    def __init__(self, call: SandboxCall) -> None:
        super().__init__(call)
        self.owner = owner.choose()
        self.place = tempfile.mkdtemp(prefix="rollyard-tool-")
        if os.geteuid() == 0:  # the program begins in it
            os.chown(self.place, self.owner.uid, self.owner.gid)
        self._pid = 0

    def enter(self, pid: int) -> int:
        self._pid = pid
        return os.open(self.place, os.O_RDONLY | os.O_DIRECTORY)

    def find_excess(self) -> Ending | None:
        unnamed = usage.unnamed_bytes(self._pid, os.stat(self.place).st_dev)
        if _is_over(self.place, self.call.limits.disk_bytes - unnamed, self.call.limits.files):
            return "files"
        return usage.find_excess(self.call.limits, self._pid)

    def end(self) -> None:
        # Stopped first: who is killed while others fork may be found by none of them any more.
        stopped: set[int] = set()
        for _ in range(_ROUNDS if self._pid else 0):
            found = self.living() - stopped
            if not found:
                break
            _signal(found, signal.SIGSTOP)
            stopped |= found
        _signal(stopped, signal.SIGKILL)

    def living(self) -> set[int]:
        """Ids of what is left of the program."""
        return {*usage.below(self._pid)}

    def close(self) -> None:
        disk.clear_away(Path(self.place))


def _signal(pids: set[int], signum: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def required(program: str, fix: str) -> str:
    """Path of an engine's program. Raises SandboxUnavailable with the fix."""
    found = shutil.which(program)
    if not found:
        raise SandboxUnavailable(f"{program} is not installed: {fix}, or use the sandbox bubblewrap")
    return found


def limiting(call: SandboxCall) -> str:
    """Shell commands that lower the limits of each process, in whatever shell an image has: their options differ."""
    limits = call.limits
    kib, blocks = limits.memory_bytes // 1024, limits.disk_bytes // _BLOCK_BYTES
    words = ["-c 0", f"-d {kib}", f"-f {blocks}", f"-n {limits.open_files}", f"-t {int(limits.cpu_s) + 1}"]
    return "".join(f"ulimit {each} 2>/dev/null; " for each in words)


def _is_over(place: str, most_bytes: int, most_files: int) -> bool:
    used, count, left = 0, 0, [place]
    while left and used <= most_bytes:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    count += 1
                    # Files may come and go meanwhile: what is gone hides no other.
                    with suppress(FileNotFoundError):
                        used += entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
                    if count > most_files or used > most_bytes:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:  # deeper than a path can say, or closed to us: more may be in it
            return True
    return used > most_bytes


def environ_of(place: str) -> dict[str, str]:
    """The variables that a program gets, whatever is inside of an image."""
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": place, "TMPDIR": place, "LANG": "C.UTF-8"}


def as_options(environ: dict[str, str], option: str) -> Sequence[str]:
    """Variables as options of a command line."""
    return [word for name, value in environ.items() for word in (option, f"{name}={value}")]
