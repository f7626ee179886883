"""The default engine: bubblewrap. About ten milliseconds a call.

    thread of ours ── bwrap ── pid 1 of the sandbox ── [setpriv, if we are root] ── prlimit ── sh ── the program

Own mount, process, network, IPC and UTS namespaces, and unless we are root a user namespace that cannot make another; a
filter of system calls; no capability. Of the file system it sees /usr, one Python and a directory of its own, which
lies in memory; of the network nothing. Of root's the program becomes a number that nobody else has: in a user namespace
it would still be root to files of the kernel.
"""

import json
import os
import select
import shutil
import signal
from contextlib import suppress
from functools import cache
from pathlib import Path

from environments.sandbox import cell, interpreter, owner, seccomp, usage
from environments.sandbox.call import Ending, SandboxCall
from environments.sandbox.cell import Cell
from environments.sandbox.engine import ThreadedEngine
from environments.sandbox.program import SandboxUnavailable, find_program

PLACE = "/tmp"
"""The program's directory, inside."""
_ETC = ("alternatives", "ld.so.cache", "localtime", "nsswitch.conf")
_SYSTEM_PROGRAMS = "/usr/bin:/bin"
_DEATH_S = 5.0
"""How long the processes of a sandbox may take to disappear after SIGKILL: one in uninterruptible sleep may never."""
_TELLING_S = 5.0
"""For bwrap to make the first process, before any mount."""
_THREADS = "1"
"""Of libraries that would start one for each core: threads count as processes."""


class BubblewrapCell(Cell):
    """A sandbox of bubblewrap. Raises SandboxUnavailable."""

    def __init__(self, call: SandboxCall, python: interpreter.Interpreter) -> None:
        super().__init__(call)
        self.owner = owner.choose()
        self._first = -1
        """Descriptor of the sandbox's first process: with it everything dies."""
        self._first_pid = 0
        self._filled: list[int] = []
        """Descriptors of the directories that it may fill, its own first."""
        # bwrap dies of a reader that is gone, and its child would wait for it for ever.
        self._info, info_writer = os.pipe()
        self._passed = [info_writer]
        try:
            options = self._options(python)
            arguments = self._given(b"".join(os.fsencode(word) + b"\0" for word in options))
            self.argv = [find_program(), "--args", str(arguments), "--", *self._inside()]
        except (SandboxUnavailable, ValueError) as error:  # or a machine without a filter of system calls
            self.close()
            raise SandboxUnavailable(str(error)) from error
        self.pass_fds = tuple(self._passed)
        self.environ = {
            "PATH": f"{python.programs}:{_SYSTEM_PROGRAMS}",
            "HOME": PLACE,
            "TMPDIR": PLACE,
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": _THREADS,
            "OPENBLAS_NUM_THREADS": _THREADS,
        }

    def started(self) -> None:
        self._let_go_of_passed()

    def enter(self, pid: int) -> int:
        self._find_first()
        shell = next(iter(usage.children(self._first_pid)), 0)  # 0: gone, and its directory cannot be opened
        for name in ("cwd", "root/dev/shm"):
            self._filled.append(os.open(f"/proc/{shell}/{name}", os.O_RDONLY | os.O_DIRECTORY))
        return os.dup(self._filled[0])

    def find_excess(self) -> Ending | None:
        if sum(map(usage.count_files, self._filled)) > self.call.limits.files:
            return "files"
        return usage.find_excess(self.call.limits, self._first_pid)

    def end(self) -> None:
        if self._first < 0:
            # Not left to bwrap's own death: a sandbox half made may not be tied to it yet.
            with suppress(OSError, LookupError, ValueError):
                self._find_first()
        if self._first >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
            # It is gone only when all others are.
            select.select([self._first], [], [], _DEATH_S)

    def close(self) -> None:
        self._let_go_of_passed()
        for descriptor in (self._info, self._first, *self._filled):
            if descriptor >= 0:
                os.close(descriptor)
        self._info = self._first = -1
        self._filled = []

    def _find_first(self) -> None:
        """Learn from bwrap which process is the sandbox's first. Raises OSError, LookupError, ValueError."""
        if not select.select([self._info], [], [], _TELLING_S)[0]:
            raise TimeoutError(f"bwrap made no process within {_TELLING_S:g} s")
        with open(self._info, "rb") as info:
            self._info = -1
            self._first_pid = json.load(info)["child-pid"]
        self._first = os.pidfd_open(self._first_pid)

    def _let_go_of_passed(self) -> None:
        for descriptor in self._passed:
            os.close(descriptor)
        self._passed = []

    def _given(self, content: bytes) -> int:
        """A descriptor to read this from, for bwrap."""
        descriptor = os.memfd_create("sandbox")
        self._passed.append(descriptor)
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor

    def _options(self, python: interpreter.Interpreter) -> list[str]:
        """In a file, not on the command line, which every account can read."""
        disk = str(self.call.limits.disk_bytes)
        is_root = os.geteuid() == 0
        user = [] if is_root else ["--unshare-user", "--disable-userns"]
        options = [*user, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--unshare-cgroup-try"]
        options += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        if is_root:  # what setpriv needs to become somebody else; it gives them up as it does
            options += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"]
        options += ["--seccomp", str(self._given(seccomp.filter_program(for_tools=True)))]
        options += ["--info-fd", str(self._passed[0]), "--proc", "/proc", "--dev", "/dev"]
        options += ["--perms", "1777", "--size", disk, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
        options += ["--perms", "0700", "--size", disk, "--tmpfs", PLACE, "--ro-bind", "/usr", "/usr"]
        for name in ("bin", "lib", "lib32", "lib64", "sbin"):
            link = Path("/", name)
            if link.is_symlink():
                options += ["--symlink", os.readlink(link), str(link)]
            elif link.is_dir():
                options += ["--ro-bind", str(link), str(link)]
        options += ["--perms", "0755", "--dir", "/etc"]
        for name in _ETC:
            options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        for name, line in (
            ("group", f"sandbox:x:{self.owner.gid}:"),
            ("hosts", "127.0.0.1 localhost sandbox"),
            ("passwd", f"sandbox:x:{self.owner.uid}:{self.owner.gid}::{PLACE}:/bin/sh"),
        ):
            options += ["--perms", "0444", "--ro-bind-data", str(self._given(f"{line}\n".encode())), f"/etc/{name}"]
        for shown in sorted(python.shown):
            for parent in reversed(shown.parents[:-1]):
                options += ["--perms", "0755", "--dir", str(parent)]
            options += ["--ro-bind", str(shown), str(shown)]
        return [*options, "--remount-ro", "/", "--chdir", PLACE]

    def _inside(self) -> list[str]:
        """What bwrap starts."""
        limits = self.call.limits
        most_cpu_s = max(int(limits.cpu_s) + 1, 1)  # a backstop for one process: all together are looked at
        words = [_system_program("prlimit"), "--core=0", "--msgqueue=0", f"--cpu={most_cpu_s}:{most_cpu_s + 1}"]
        words += [f"--data={limits.memory_bytes}", f"--fsize={limits.disk_bytes}", f"--nofile={limits.open_files}"]
        words += [f"--nproc={limits.processes}", "--", *cell.waiting(self.call.argv)]
        if os.geteuid() != 0:
            return words
        who = ["--reuid", str(self.owner.uid), "--regid", str(self.owner.gid), "--clear-groups"]
        drop = ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--"]
        return [_system_program("setpriv"), *who, *drop, *words]


class Bubblewrap(ThreadedEngine):
    """The default engine."""

    name = "bubblewrap"

    def __init__(self, python: str = "") -> None:
        """`python`: the interpreter, or the directory of the virtual environment, that programs see; "": ours.

        Raises SandboxUnavailable where there is none.
        """
        self._python = interpreter.find(python)

    def make(self, call: SandboxCall) -> Cell:
        return BubblewrapCell(call, self._python)


@cache
def _system_program(name: str) -> str:
    found = shutil.which(name, path=_SYSTEM_PROGRAMS)
    if not found:
        raise SandboxUnavailable(f"{name} is missing: install util-linux")
    return found
