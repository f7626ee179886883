"""One sandbox for one program, from its command line to the end of everything in it.

    Popen(argv) ── makes the sandbox ── sh: writes a line, waits for one ── the program
                                            │                 ▲
                                            ▼                 │
                                          enter: open its directory, fill it

The shell's two lines go over the program's own stdout and stdin, so nothing more has to reach into a sandbox; when the
first has come, whatever makes the sandbox is done, and none of the program has run.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from environments.sandbox.call import Ending, SandboxCall
from environments.sandbox.owner import Owner

BEGINNING = b"\n"
"""What the shell writes, and what it waits for."""
_SCRIPT = 'echo; read -r _ || exit; exec "$@"'
"""Of a shell that ends by itself when whoever started it is gone."""


def waiting(argv: Sequence[str], before: str = "") -> list[str]:
    """A command line that says when it is about to begin, and begins when it is told to; `before`: of its shell."""
    return ["/bin/sh", "-c", f"{before}{_SCRIPT}", "sh", *argv]


class Cell(ABC):
    """A sandbox that is made when `argv` is started. Methods block; it is used by one thread."""

    argv: list[str]
    environ: dict[str, str]
    pass_fds: Sequence[int] = ()
    owner: Owner

    def __init__(self, call: SandboxCall) -> None:
        self.call = call

    def started(self) -> None:  # noqa: B027 - most have nothing
        """Let go of what the child has now."""

    @abstractmethod
    def enter(self, pid: int) -> int:
        """Return a descriptor of the program's directory, which is about to begin; `pid`: of what was started.

        Raises OSError, SandboxUnavailable.
        """

    @abstractmethod
    def find_excess(self) -> Ending | None:
        """The first limit that it exceeds now, of those that are looked at."""

    @abstractmethod
    def end(self) -> None:
        """Kill whatever is left of the program and return when it is gone. Also when it was never entered."""

    def remove(self) -> None:  # noqa: B027 - most have nothing
        """End what outlives whoever was started, which is dead now and makes no more of it."""

    def close(self) -> None:  # noqa: B027 - most have nothing
        """Let go of everything. May be repeated."""
