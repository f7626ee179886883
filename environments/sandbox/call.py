"""What is asked of a sandbox, and what it gives back. Standard library and msgspec only."""

import math
from typing import Literal, Self

import msgspec

_MIB = 2**20
_MOST_NAMES = 64
_LONGEST_NAME = 255
_DEEPEST_NAME = 16

Ending = Literal["exit", "wall", "cpu", "memory", "output", "files"]
"""Why a program ended: by itself, or at which limit."""


class SandboxLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a program may use, with everything that it starts."""

    wall_s: float = 10.0
    cpu_s: float = 10.0
    memory_bytes: int = 512 * _MIB
    """What its files take comes on top."""
    processes: int = 64
    """Threads count, each."""
    disk_bytes: int = 64 * _MIB
    """Of the files in its directory, and as much again in /dev/shm. They lie in memory."""
    files: int = 10_000
    open_files: int = 256
    """Of each process."""
    kept_bytes: int = 64 * 1024
    """Of each of its outputs: the beginning of stdout, the end of stderr."""
    output_bytes: int = 1 * _MIB
    """Of both outputs together; whoever writes more is ended."""
    returned_bytes: int = 1 * _MIB
    """Of all files that are asked for together."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not math.isfinite(value) or value <= 0:
                raise ValueError(f"{name} of a sandbox is {value}: it must be a number above 0")

    def at_most(self, most: Self) -> Self:
        """The smaller of each."""
        names = self.__struct_fields__
        return type(self)(**{name: min(getattr(self, name), getattr(most, name)) for name in names})


class SandboxCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One program, to be run once. Raises ValueError for what cannot be run or would lead out of its directory."""

    argv: list[str]
    files: dict[str, bytes] = {}
    """Name, relative to the directory in which it starts -> content. One that begins with `#!` is executable."""
    stdin: bytes = b""
    returns: list[str] = []
    """Names of the files that are wanted when it has ended."""
    limits: SandboxLimits = SandboxLimits()

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            raise ValueError("argv of a sandbox names no program")
        if any("\0" in word for word in self.argv):
            raise ValueError("argv of a sandbox has a zero byte in it")
        for names in (self.files, self.returns):
            if len(names) > _MOST_NAMES:
                raise ValueError(f"a sandbox takes {_MOST_NAMES} files and returns as many, not {len(names)}")
            for name in names:
                _check(name)
        for name in self.files:
            if above := next((other for other in self.files if name.startswith(f"{other}/")), None):
                raise ValueError(f"{above!r} cannot be a file and the directory of {name!r}")
        if sum(map(len, self.files.values())) > self.limits.disk_bytes:
            raise ValueError(f"the files are larger than disk_bytes, {self.limits.disk_bytes}")


class SandboxResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a call."""

    ended: Ending
    exit_code: int | None
    """None where a signal or a limit ended it; 126 and 127: it could not be started, and stderr says why."""
    signal: int | None = None
    """Which ended it; one that shells report as 128 and more counts as that signal."""
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_was_cut: bool = False
    stderr_was_cut: bool = False
    wall_s: float = 0.0
    """From the start of the program until nothing of it was left."""
    files: dict[str, bytes] = {}
    """Those that were asked for and are there."""
    missing: dict[str, str] = {}
    """Those that were asked for and could not be had -> why."""

    @property
    def succeeded(self) -> bool:
        """Whether it ended by itself with code 0."""
        return self.ended == "exit" and self.exit_code == 0

    @property
    def output(self) -> str:
        """Its stdout as text."""
        return self.stdout.decode(errors="replace")

    @property
    def errors(self) -> str:
        """Its stderr as text."""
        return self.stderr.decode(errors="replace")


def _check(name: str) -> None:
    parts = name.split("/")
    if name.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{name!r} is no name of a file of a sandbox: write it relative to its directory, without ..")
    if not name.isprintable() or len(name) > _LONGEST_NAME or len(parts) > _DEEPEST_NAME:
        raise ValueError(
            f"{name[:_LONGEST_NAME]!r} is no name of a file of a sandbox: it has at most {_LONGEST_NAME} printable "
            f"characters and {_DEEPEST_NAME} parts"
        )
