"""Engines that others make: podman, Apptainer and gVisor, each with the options that close the most.

They are for machines that have them anyway, or that want a kernel of its own between programs and the machine (gVisor).
A call takes some tenths of a second. Nothing is pulled: an image has to be there.
"""

import json
import os
import subprocess
import tempfile
import uuid
from pathlib import Path

from environments import disk
from environments.sandbox import cell, host_cell
from environments.sandbox.call import SandboxCall
from environments.sandbox.cell import Cell
from environments.sandbox.engine import ThreadedEngine
from environments.sandbox.host_cell import HostCell
from environments.sandbox.program import SandboxUnavailable

IMAGE = "ROLLYARD_TOOL_IMAGE"
"""Variable with the image of podman's and Apptainer's programs. It needs a /bin/sh."""
PLACE = "/sandbox"
"""The program's directory, inside."""
_REMOVAL_S = 20.0
_NOBODY_S = "/usr/sbin:/usr/bin:/sbin:/bin"


class Podman(ThreadedEngine):
    """Containers without a network, whose root is read-only. Memory and processes are bounded by its cgroups."""

    name = "podman"

    def __init__(self, image: str = "") -> None:
        self._program = host_cell.required("podman", "install podman")
        self._image = _image(image, "podman pull docker.io/library/python:3.12-slim")

    def make(self, call: SandboxCall) -> Cell:
        return _PodmanCell(call, self._program, self._image)


class _PodmanCell(HostCell):
    def __init__(self, call: SandboxCall, program: str, image: str) -> None:
        super().__init__(call)
        limits, self._program, self._container = call.limits, program, f"rollyard-tool-{uuid.uuid4()}"
        memory, most = str(limits.memory_bytes), str(limits.disk_bytes)
        self.argv = [program, "run", "--rm", "--interactive", "--name", self._container, "--pull", "never"]
        self.argv += ["--network", "none", "--read-only", "--read-only-tmpfs=false", "--cap-drop", "all"]
        self.argv += ["--security-opt", "no-new-privileges", "--log-driver", "none", "--entrypoint", ""]
        self.argv += ["--user", f"{self.owner.uid}:{self.owner.gid}"]
        self.argv += [] if os.geteuid() == 0 else ["--userns", "keep-id"]
        self.argv += ["--pids-limit", str(limits.processes), "--memory", memory, "--memory-swap", memory]
        self.argv += ["--ulimit", "core=0", "--ulimit", f"nofile={limits.open_files}", "--ulimit", f"fsize={most}"]
        self.argv += ["--ulimit", f"cpu={int(limits.cpu_s) + 1}", "--shm-size", most]
        self.argv += ["--tmpfs", f"/tmp:rw,size={most},mode=1777"]
        self.argv += ["--volume", f"{self.place}:{PLACE}:rw,Z", "--workdir", PLACE]
        self.argv += [*host_cell.as_options(host_cell.environ_of(PLACE), "--env"), image, *cell.waiting(call.argv)]
        self.environ = _own_environ()

    def end(self) -> None:
        pass  # its processes are no descendants of ours

    def remove(self) -> None:
        _quietly([self._program, "rm", "--force", "--ignore", "--time", "0", self._container])


class Apptainer(ThreadedEngine):
    """Containers of one account, without a network; not for root, which would stay root inside."""

    name = "apptainer"

    def __init__(self, image: str = "") -> None:
        self._program = host_cell.required("apptainer", "install apptainer")
        if os.geteuid() == 0:
            raise SandboxUnavailable("apptainer would run programs as root: start as another account, or use podman")
        self._image = _image(image, "apptainer build tools.sif docker://python:3.12-slim")

    def make(self, call: SandboxCall) -> Cell:
        return _ApptainerCell(call, self._program, self._image)


class _ApptainerCell(HostCell):
    def __init__(self, call: SandboxCall, program: str, image: str) -> None:
        super().__init__(call)
        self.argv = [program, "--quiet", "exec", "--containall", "--net", "--network", "none", "--no-privs"]
        self.argv += ["--bind", f"{self.place}:{PLACE}", "--pwd", PLACE]
        self.argv += [*host_cell.as_options(host_cell.environ_of(PLACE), "--env"), image]
        self.argv += cell.waiting(call.argv, host_cell.limiting(call))
        self.environ = _own_environ()


class GVisor(ThreadedEngine):
    """A kernel of its own in user space, behind which a program sees the /usr of this machine."""

    name = "gvisor"

    def __init__(self) -> None:
        self._program = host_cell.required("runsc", "install gVisor")

    def make(self, call: SandboxCall) -> Cell:
        return _GVisorCell(call, self._program)


class _GVisorCell(HostCell):
    def __init__(self, call: SandboxCall, program: str) -> None:
        super().__init__(call)
        self._bundle = bundle = Path(tempfile.mkdtemp(prefix="rollyard-tool-"))
        for name in ("rootfs", "state"):
            (bundle / name).mkdir()
        (bundle / "rootfs").chmod(0o755)  # whatever our umask: the program is somebody else
        for name in ("bin", "lib", "lib64", "sbin"):
            if (link := Path("/", name)).is_symlink():
                (bundle / "rootfs" / name).symlink_to(os.readlink(link))
        (bundle / "config.json").write_text(json.dumps(self._config()))
        self._runsc = [program, "--root", str(bundle / "state"), "--network", "none", "--ignore-cgroups"]
        self._runsc += [] if os.geteuid() == 0 else ["--rootless"]
        self._container = uuid.uuid4().hex
        self.argv = [*self._runsc, "run", "--bundle", str(bundle), self._container]
        self.environ = _own_environ()

    def end(self) -> None:
        _quietly([*self._runsc, "delete", "--force", self._container])
        super().end()

    def close(self) -> None:
        disk.clear_away(self._bundle)
        super().close()

    def _config(self) -> dict[str, object]:
        """What the runtime specification of OCI calls a bundle."""
        limits, most = self.call.limits, self.call.limits.disk_bytes
        bounds = {"RLIMIT_NOFILE": limits.open_files, "RLIMIT_DATA": limits.memory_bytes, "RLIMIT_FSIZE": most}
        mounts = [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": [f"size={most}", "mode=1777"]},
            {"destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"]},
            {"destination": PLACE, "type": "bind", "source": self.place, "options": ["bind", "rw"]},
        ]
        return {
            "ociVersion": "1.0.2",
            "root": {"path": "rootfs", "readonly": True},
            "hostname": "sandbox",
            "mounts": mounts,
            "process": {
                "user": {"uid": self.owner.uid, "gid": self.owner.gid},
                "args": cell.waiting(self.call.argv, host_cell.limiting(self.call)),
                "env": [f"{name}={value}" for name, value in host_cell.environ_of(PLACE).items()],
                "cwd": PLACE,
                "noNewPrivileges": True,
                "capabilities": {},
                "rlimits": [{"type": name, "soft": value, "hard": value} for name, value in bounds.items()],
            },
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]},
        }


def _image(named: str, example: str) -> str:
    image = named or os.environ.get(IMAGE, "")
    if not image:
        raise SandboxUnavailable(f"no image to run programs in: name one in {IMAGE} (`{example}` makes one)")
    return image


def _own_environ() -> dict[str, str]:
    """What the engine itself needs; the program gets none of it."""
    kept = ("HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
    return {"PATH": _NOBODY_S, **{name: os.environ[name] for name in kept if name in os.environ}}


def _quietly(argv: list[str]) -> None:
    try:
        subprocess.run(
            argv,
            env=_own_environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_REMOVAL_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        pass  # whatever is left of it, its caller kills what it can see
