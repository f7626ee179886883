"""The sandbox that code of a run lives in: what it sees of the machine, as a command of bubblewrap. Linux only.

    shepherd (ours) ── bwrap ── pid 1 of the sandbox ── [setpriv, if we are root] ── the command ── its children

Own mount, process, network, IPC, UTS and, unless we are root, user namespaces; a seccomp filter; no capability. What it
sees of the file system is a list: programs and libraries, what it may read, what it may write. Of the network it sees a
loopback of its own: the control plane and the inference server are sockets in directories that are on the list.

We are root: the command runs under the account ACCOUNT, which owns what it may write; namespaces alone would leave it
the powers of root over whatever it can open. We are not: it runs as we do, in a user namespace that it cannot leave.
Standard library only: the shepherd imports this.
"""

import contextlib
import json
import os
import platform
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import IO, Self

from environments import reserved
from environments.disk import open_straight
from environments.sandbox import seccomp
from environments.sandbox.program import ACCOUNT as ACCOUNT
from environments.sandbox.program import SandboxUnavailable as SandboxUnavailable
from environments.sandbox.program import find_program as find_program
from workers.launchers import limits
from workers.launchers.processes import send, start_time

_TMP_BYTES = 2 * 2**30
_SHM_SHARE = 0.5
"""Of the machine's memory, as Linux has it for /dev/shm."""
SETUP_DEADLINE_S = 30.0
"""For bwrap to make its mounts: a file system of the network that hangs would hold it for ever."""
TOOK_TOO_LONG = f"bwrap made no sandbox within {SETUP_DEADLINE_S:.0f} s: does a file system hang?"
_KEPT_BYTES = 64 * 2**10
"""Of what a command writes to each of its outputs, for who started it."""
_ETC = ("alternatives", "group", "ld.so.cache", "localtime", "nsswitch.conf", "passwd")
_GPUS = ("nvidia[0-9]*", "nvidia-caps/nvidia-cap[0-9]*")
"""The second are parts of one (MIG); who may use which, their own modes say."""
_GPU_DEVICES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


@dataclass(frozen=True)
class Sandbox:
    """What a command sees besides programs."""

    readable: Mapping[str, str] = field(default_factory=dict)
    """Absolute path inside -> what is shown there: an absolute path no component of which is a link."""
    writable: Mapping[str, str] = field(default_factory=dict)
    """The same. They belong to the account of runs where there is one."""
    directory: str = "/tmp"
    """Where the command starts, and its HOME."""
    gpus: bool = False
    network: bool = False
    """Whether its network is the machine's."""
    account: str = ""
    """Whose the command is; "": ours."""
    bwrap: str = "bwrap"
    """The program."""


def arguments(
    sandbox: Sandbox, *, descriptors: Mapping[str, int], seccomp_fd: int, hosts_fd: int, info_fd: int
) -> list[str]:
    """bwrap's options, for `--args`: they lie in a file, because a command line is for every account to read.

    `descriptors`: what is shown at each path of `readable` and `writable`.
    """
    is_root = bool(sandbox.account)
    user = [] if is_root else ["--unshare-user", "--disable-userns"]
    options = [*user, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    options += [] if sandbox.network else ["--unshare-net"]
    options += ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    if is_root:  # what setpriv needs to become the account; it gives them up as it does
        options += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"]
    options += ["--seccomp", str(seccomp_fd), "--info-fd", str(info_fd)]
    options += ["--proc", "/proc", "--dev", "/dev", *_tmpfs("/dev/shm", _shm_bytes()), *_tmpfs("/tmp", _TMP_BYTES)]
    options += ["--ro-bind", str(reserved.SYSTEM), str(reserved.SYSTEM)]
    for name in ("bin", "lib", "lib32", "lib64", "sbin"):
        link = Path("/", name)
        if link.is_symlink():
            options += ["--symlink", os.readlink(link), str(link)]
        elif link.is_dir():
            options += ["--ro-bind", str(link), str(link)]
    options += ["--perms", "0755", "--dir", "/etc", "--perms", "0444", "--ro-bind-data", str(hosts_fd), "/etc/hosts"]
    for name in _ETC:
        options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    # Without what it says of cores and memory vLLM does not start, without the rest CUDA.
    hardware = "/sys" if sandbox.gpus else "/sys/devices/system"
    binds = {str(path): ["--ro-bind", str(path)] for path in [hardware, *reserved.programs()]}
    binds |= {path: ["--ro-bind-fd", str(descriptors[path])] for path in sandbox.readable}
    binds |= {path: ["--bind-fd", str(descriptors[path])] for path in sandbox.writable}
    made: set[str] = set()
    for path in sorted(binds, key=lambda each: (each.count("/"), each)):
        for parent in reversed(Path(path).parents):
            if str(parent) not in made and str(parent) not in ("/", "/tmp", "/usr"):
                made.add(str(parent))
                options += ["--perms", "0755", "--dir", str(parent)]
        options += [*binds[path], path]
    if sandbox.gpus:
        found = (path for pattern in _GPUS for path in Path("/dev").glob(pattern))
        devices = [*sorted(found), *(Path("/dev", name) for name in _GPU_DEVICES)]
        for device in devices:
            options += ["--dev-bind-try", *_twice(device)]
    return [*options, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp" if is_root else sandbox.directory]


def inside(sandbox: Sandbox, argv: Sequence[str]) -> list[str]:
    """What bwrap starts."""
    if not sandbox.account:
        return list(argv)
    import pwd

    entry = pwd.getpwnam(sandbox.account)
    drop = ["setpriv", "--reuid", str(entry.pw_uid), "--regid", str(entry.pw_gid), "--clear-groups"]
    drop += ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--"]
    # Only now may it enter what is the account's alone.
    return [*drop, "env", "-C", sandbox.directory, *argv]


class Entry:
    """One start of a sandbox: a command line, and descriptors which are closed here once the child has them.

    What is shown is opened here, without following a link, and bwrap mounts that or nothing, whatever somebody
    exchanges meanwhile. Raises SandboxUnavailable.

    with Entry(sandbox, argv) as entry:
        child = Popen(entry.argv, pass_fds=entry.pass_fds)
    pid = entry.pid_one()
    """

    def __init__(self, sandbox: Sandbox, argv: Sequence[str]) -> None:
        # Read even where nobody asks: bwrap dies of a reader that is gone, and its child would wait for it for ever.
        shown = _open(sandbox)
        self._info, info_writer = os.pipe()
        hosts = f"127.0.0.1 localhost {platform.node()}\n::1 localhost\n"
        self.pass_fds = [info_writer, _memory("seccomp", seccomp.filter_program()), _memory("hosts", hosts.encode())]
        given = arguments(
            sandbox, descriptors=shown, info_fd=info_writer, seccomp_fd=self.pass_fds[1], hosts_fd=self.pass_fds[2]
        )
        self.pass_fds += shown.values()
        self.pass_fds.append(_memory("arguments", b"".join(os.fsencode(word) + b"\0" for word in given)))
        self.argv = [sandbox.bwrap, "--args", str(self.pass_fds[-1]), "--", *inside(sandbox, argv)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for descriptor in self.pass_fds:
            os.close(descriptor)
        self.pass_fds = []
        if kind is not None:  # there is no child
            os.close(self._info)

    def pid_one(self) -> int | None:
        """Process id, out here, of the sandbox's first process. None: bwrap died before it made one.

        Blocks until there is that process, before any mount; once. Raises TimeoutError.
        """
        give_up_at = time.monotonic() + SETUP_DEADLINE_S
        told = b""
        with open(self._info, "rb", buffering=0) as file:
            while chunk := self._read(file, give_up_at - time.monotonic()):
                told += chunk
        try:
            pid: int = json.loads(told)["child-pid"]
        except (ValueError, KeyError):
            return None
        return pid

    @staticmethod
    def _read(file: FileIO, within_s: float) -> bytes:
        if not select.select([file], [], [], max(within_s, 0))[0]:
            raise TimeoutError(TOOK_TOO_LONG)
        return file.read(65_536) or b""


def run(
    sandbox: Sandbox | None,
    argv: Sequence[str],
    *,
    timeout_s: float,
    environ: dict[str, str],
    look: Callable[[], None] = lambda: None,
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, watched as a replica is; of what it writes the end is kept. `look` is called several
    times a second: what it raises ends the command.

    Raises subprocess.TimeoutExpired, LimitExceeded, SandboxUnavailable, TimeoutError when no sandbox is made.
    """
    bounds, place = limits.default(), sandbox.directory if sandbox else None
    with tempfile.TemporaryFile(dir=place) as out, tempfile.TemporaryFile(dir=place) as err:
        with contextlib.ExitStack() as starting:
            entry = starting.enter_context(Entry(sandbox, argv)) if sandbox else None
            child = subprocess.Popen(
                [*limits.capping(bounds), *(entry.argv if entry else argv)],
                env=environ,
                pass_fds=entry.pass_fds if entry else (),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        first: tuple[int, int] | None = None
        try:
            if entry and (pid := entry.pid_one()) and (started := start_time(pid)):
                first = pid, started
            written = [Path(f"/proc/self/fd/{file.fileno()}") for file in (out, err)]
            limits.attend(child, bounds, written, timeout_s, look)
        finally:
            if first:  # not left to bwrap's own death: a sandbox half made is not tied to it yet
                send(first[0], signal.SIGKILL, started=first[1])
            child.kill()
            child.wait()
        return subprocess.CompletedProcess(argv, child.returncode, _end_of(out), _end_of(err))


def _open(sandbox: Sandbox) -> dict[str, int]:
    """Path inside -> descriptor of what is shown there. Raises SandboxUnavailable."""
    opened: dict[str, int] = {}
    for inside, source in {**sandbox.readable, **sandbox.writable}.items():
        try:
            opened[inside] = open_straight(Path(source))
        except OSError as error:
            for descriptor in opened.values():
                os.close(descriptor)
            raise SandboxUnavailable(f"{inside} cannot be shown to a run: {error.strerror}") from error
    return opened


def _end_of(file: IO[bytes]) -> str:
    file.seek(max(file.seek(0, os.SEEK_END) - _KEPT_BYTES, 0))
    return file.read(_KEPT_BYTES).decode(errors="replace")


def _twice(path: str | Path) -> tuple[str, str]:
    return str(path), str(path)


def _tmpfs(path: str, size_bytes: int) -> list[str]:
    return ["--perms", "1777", "--size", str(size_bytes), "--tmpfs", path]


def _shm_bytes() -> int:
    return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * _SHM_SHARE)


def _memory(name: str, content: bytes) -> int:
    descriptor = os.memfd_create(name, 0)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
