"""The process between a launcher and a replica: `python -m workers.launchers.shepherd DIRECTORY`.

    launcher --- runs, waits for "started" ---> shepherd (own session) ---> the replica's command ---> its children
                                                    |
                    DIRECTORY: spec.json  started.json  log.txt  heartbeat  exit.json  scratch/, the replica's own

It outlives the launcher, so a restarted reconciler finds the replica as it left it. It ends the command when it is
asked to (SIGTERM), when the supervisor it was started under is gone and when it exceeds a limit, ends what the command
leaves behind, and only then writes `exit.json`. The command lives in a sandbox, the shepherd outside of it. Standard
library only, so that it starts at once and stays small.
"""

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from environments.disk import write_file
from trainers.child import adopt_orphans, die_with_parent
from workers.launchers import limits, sandbox
from workers.launchers.base import End
from workers.launchers.limits import Excess, Limits
from workers.launchers.processes import (
    TOKEN_VARIABLE,
    boot_id,
    carriers,
    children,
    end,
    send,
    start_time,
    with_descendants,
)
from workers.launchers.sandbox import Sandbox, SandboxUnavailable

SUPERVISOR_VARIABLE = "ROLLYARD_UP_PID"
"""Process id of the `rollyard up` that all this belongs to; absent where an init system supervises."""
HEARTBEAT_S = 2.0
_LEFTOVERS_GRACE_S = 2.0
_SIGNALLED = 128
"""bwrap exits with this and the signal's number when a signal ended the command."""
_COMMAND_DEADLINE_S = 2.0
"""Within which the first process of a sandbox starts the command."""


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a file that is complete or absent, and ours alone to read."""
    write_file(path, json.dumps(content).encode(), mode=0o600)


class Shepherd:
    """Starts one command, tends it until it has ended, and writes down how."""

    def __init__(self, directory: Path, spec: dict[str, Any]) -> None:
        self.directory = directory
        self.spec = spec
        self.token: str = spec["token"]
        self.end: End | None = None
        """Why the command was asked to end; None while it was not."""
        self.child: subprocess.Popen[bytes] | None = None
        """The command, or the bwrap around it."""
        self.sandbox = Sandbox(**spec["sandbox"]) if spec.get("sandbox") else None
        self.limits = Limits(**spec["limits"]) if spec.get("limits") else None
        self.excess: Excess | None = None
        self.pid_one: int | None = None
        """First process of the sandbox; the command is its child."""
        self.exit_code: int | None = None
        supervisor = int(os.environ.get(SUPERVISOR_VARIABLE) or 0)
        self.supervisor = (supervisor, start_time(supervisor)) if supervisor else None
        self.wakeup, wakeup_writer = os.pipe()
        for descriptor in (self.wakeup, wakeup_writer):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wakeup_writer, warn_on_full_buffer=False)
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._asked)
        # For the agent alone, which has a minute left to end us in order; srun gives it to every process of its job.
        # What ignores a signal has its programs begin so.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        # Only its wake-up matters: the loop reaps.
        signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)

    def start(self) -> None:
        """Start the command. Raises OSError when it cannot be run."""
        adopt_orphans()
        shepherd = os.getpid()
        argv: list[str] = self.spec["argv"]
        if self.sandbox is not None and shutil.which(argv[0]) is None:  # bwrap would only say so in the log
            raise FileNotFoundError(f"there is no program {argv[0]}")

        def before_exec() -> None:
            if cores := self.spec.get("cores"):
                os.sched_setaffinity(0, cores)
            if self.limits is not None:
                limits.backstops(self.limits)
            die_with_parent(signal.SIGTERM, shepherd)

        # A group of its own: what a terminal or a supervisor sends to our group is for us to pass on.
        with contextlib.ExitStack() as starting:
            entry = starting.enter_context(sandbox.Entry(self.sandbox, argv)) if self.sandbox else None
            self.child = subprocess.Popen(
                entry.argv if entry else argv,
                stdin=subprocess.DEVNULL,
                preexec_fn=before_exec,
                process_group=0,
                pass_fds=entry.pass_fds if entry else (),
            )
        if entry is not None:
            self.pid_one = entry.pid_one()
        write_json(
            self.directory / "started.json",
            {
                "pid": shepherd,
                "start_time": start_time(shepherd),
                "boot_id": boot_id(),
                "child_pid": self._command(),
                "token": self.token,
                "started_at": time.time(),
            },
        )

    def tend(self) -> None:
        """Watch the command until it and everything it started are gone; then write exit.json."""
        assert self.child is not None
        started_at = time.time()
        asked_at: float | None = None
        heartbeat = self.directory / "heartbeat"
        while self.exit_code is None:
            with contextlib.suppress(OSError):  # a full disk must not end the replica
                heartbeat.touch()
            if self.end is None and self._abandoned():
                self.end = End.ABANDONED
            if self.limits is not None and self.excess is None:
                pids = with_descendants({self.child.pid})
                if excess := limits.find_excess(self.limits, pids, self.directory / "log.txt"):
                    self.excess, self.end = excess, End.LIMIT
                    os.kill(self.child.pid, signal.SIGKILL)
            if self.end is not None and asked_at is None:
                asked_at = time.monotonic()
                # To bwrap it would mean to kill all at once.
                send(self._command(), signal.SIGTERM)
            wait_s = HEARTBEAT_S if self.limits is None else limits.LOOK_EVERY_S
            if asked_at is not None:
                grace_left_s = asked_at + self.spec["grace_s"] - time.monotonic()
                if grace_left_s <= 0:
                    os.kill(self.child.pid, signal.SIGKILL)
                wait_s = min(wait_s, max(grace_left_s, 0.1))
            self._reap()
            if self.exit_code is None:
                select.select([self.wakeup], [], [], wait_s)
                self._drain_wakeups()
                self._reap()
        survivors = end(self._leftovers, _LEFTOVERS_GRACE_S, each_round=self._reap)
        write_json(
            self.directory / "exit.json",
            {
                "code": self.exit_code,
                "end": self.end or End.DIED,
                "excess": self.excess._asdict() if self.excess else {},
                "token": self.token,
                "started_at": started_at,
                "ended_at": time.time(),
                "survivors": sorted(survivors),
            },
        )

    def _command(self) -> int:
        """Process id of the command. Of one whose sandbox is not ready, that of bwrap."""
        assert self.child is not None
        if self.pid_one is None:
            return self.child.pid
        give_up_at = time.monotonic() + _COMMAND_DEADLINE_S
        while not (found := children(self.pid_one)) and start_time(self.pid_one) and time.monotonic() < give_up_at:
            time.sleep(0.002)
        return min(found, default=self.child.pid)

    def _abandoned(self) -> bool:
        """Whether the supervisor we were started under has ended, or had before we looked."""
        if self.supervisor is None:
            return False
        pid, started = self.supervisor
        return started is None or start_time(pid) != started

    def _asked(self, _signum: int, _frame: FrameType | None) -> None:
        self.end = self.end or End.ASKED

    def _leftovers(self) -> set[int]:
        me = os.getpid()
        return (with_descendants({me}) | carriers(self.token)) - {me}

    def _reap(self) -> None:
        """Collect every ended child: the command and adopted orphans."""
        assert self.child is not None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.child.pid:
                code = os.waitstatus_to_exitcode(status)
                if self.sandbox is not None and code > _SIGNALLED:
                    code = _SIGNALLED - code
                self.exit_code = self.child.returncode = code

    def _drain_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wakeup, 4096):
                pass


def _detach(directory: Path) -> int:
    """Leave the session of whoever ran us; return a descriptor on which to tell them how the start went.

    The process they ran stays until it has heard, so `started` on its side means that the command runs.
    """
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with open(reader, "rb") as answer:
            trouble = answer.read().decode() or "the shepherd died at its start; see log.txt\n"
        if trouble != "started\n":
            sys.stderr.write(trouble)
            os._exit(1)
        os._exit(0)
    os.close(reader)
    os.setsid()
    log = os.open(directory / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(null)
    return writer


def main() -> int:
    """Tend the replica whose spec.json is in the directory named by the only argument."""
    directory = Path(sys.argv[1]).absolute()
    spec = json.loads((directory / "spec.json").read_text())
    if os.environ.get(TOKEN_VARIABLE) != spec["token"]:
        sys.stderr.write(f"{TOKEN_VARIABLE} is not the token of {directory}/spec.json\n")
        return 1
    answer = os.fdopen(_detach(directory), "wb")
    # Held until we end, so that two launchers that start one replica start one process.
    lock = os.open(directory / "lock", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if (directory / "started.json").exists():
            raise FileExistsError(f"{directory} was used before")
        shepherd = Shepherd(directory, spec)
        shepherd.start()
    except (OSError, SandboxUnavailable) as error:
        answer.write(f"{error}\n".encode())
        answer.close()
        return 1
    answer.write(b"started\n")
    answer.close()
    shepherd.tend()
    return 0


if __name__ == "__main__":
    sys.exit(main())
