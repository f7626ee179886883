"""Start a sandbox, and be there until nothing of it is left: moves its input and outputs, looks at its limits, ends it.

Blocks, in a thread of its own: bubblewrap dies with the thread that started it. Linux only.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable

from environments.sandbox import directory
from environments.sandbox.call import Ending, SandboxResult
from environments.sandbox.cell import BEGINNING, Cell
from environments.sandbox.pipes import Pipes, Stop
from environments.sandbox.program import SandboxUnavailable

_SETUP_DEADLINE_S = 30.0
"""For a sandbox to be made: a file system of the network that hangs would hold it for ever."""
_FIRST_LOOK_S = 0.05
"""Most programs have ended by then."""
_LOOK_S = 0.1
_SECOND_LOOK_S = 0.01
"""After one that found too much: between fork and exec memory seems to be there twice."""
_SIGNALLED = 128
"""A shell's way to say by which signal something ended; bubblewrap's too."""


def attend(make: Callable[[], Cell], stop: Stop) -> SandboxResult:
    """Run a program in the sandbox that `make` gives. Raises SandboxUnavailable, Stopped."""
    with contextlib.closing(make()) as cell, contextlib.ExitStack() as closing:
        try:
            pipe = subprocess.PIPE
            child = subprocess.Popen(
                cell.argv,
                env=cell.environ,
                pass_fds=cell.pass_fds,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxUnavailable(f"{cell.argv[0]} cannot be started: {error.strerror}") from error
        began = time.monotonic()
        try:
            cell.started()
            pipes = closing.enter_context(Pipes(child, cell.call, stop))
            place = _enter(cell, child.pid, pipes)
            closing.callback(os.close, place)
            began = time.monotonic()
            ended = _wait(cell, pipes, began)
        finally:
            cell.end()
            child.kill()
            child.wait()
            cell.remove()
        wall_s = time.monotonic() - began
        pipes.drain()
        files, missing = directory.collect(place, cell.call.returns, cell.call.limits.returned_bytes)
        code, by = _status(child.returncode) if ended == "exit" else (None, None)
        return SandboxResult(
            ended="cpu" if by == signal.SIGXCPU else ended,
            exit_code=code,
            signal=by,
            stdout=pipes.out.content,
            stderr=pipes.err.content,
            stdout_was_cut=pipes.out.was_cut,
            stderr_was_cut=pipes.err.was_cut,
            wall_s=wall_s,
            files=files,
            missing=missing,
        )


def _enter(cell: Cell, pid: int, pipes: Pipes) -> int:
    """Wait until the sandbox is made, and put the program's files in it. Returns its directory, open."""
    give_up_at = time.monotonic() + _SETUP_DEADLINE_S
    while not pipes.has_begun:
        left_s = give_up_at - time.monotonic()
        if pipes.is_over or left_s <= 0:
            pipes.drain()
            words = pipes.err.content.decode(errors="replace").strip()[-300:]
            reason = words or ("it ended at once" if pipes.is_over else "does a file system hang?")
            raise SandboxUnavailable(f"no sandbox was made by {cell.argv[0]}: {reason}")
        pipes.move(left_s)
    place = -1
    try:
        place = cell.enter(pid)
        directory.fill(place, cell.call.files, cell.owner)
    except (OSError, LookupError, ValueError) as error:
        if place >= 0:
            os.close(place)
        raise SandboxUnavailable(f"a sandbox did not take the files of its program: {error}") from error
    pipes.send(BEGINNING + cell.call.stdin)
    return place


def _wait(cell: Cell, pipes: Pipes, began: float) -> Ending:
    limits, suspected = cell.call.limits, None
    deadline, look_at = began + limits.wall_s, began + _FIRST_LOOK_S
    while not pipes.is_over:
        now = time.monotonic()
        if now >= deadline:
            return "wall"
        pipes.move(min(deadline, look_at) - now)
        if pipes.written_bytes > limits.output_bytes:
            return "output"
        if time.monotonic() >= look_at:
            found = cell.find_excess()
            if found and found == suspected:
                return found
            suspected, look_at = found, time.monotonic() + (_SECOND_LOOK_S if found else _LOOK_S)
    return "exit"


def _status(code: int) -> tuple[int | None, int | None]:
    """Exit code and signal, one of which is None."""
    by = -code if code < 0 else code - _SIGNALLED
    try:
        return None, signal.Signals(by).value
    except ValueError:
        return code, None
