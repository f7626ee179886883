"""Processes that decide about mathematics, each with one question at a time and a deadline of ours.

Started when first needed, kept, and replaced where one is killed; they end with this process, whose end of their stdin
closes. Threads of ours wait for them, so that any number of event loops may ask.
"""

import asyncio
import atexit
import json
import math
import os
import select
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from queue import Empty, LifoQueue
from typing import Any

from environments import processors
from environments.rewards import math_worker

_MOST = 4
_START_S = 60.0
"""For the imports: more than a second where nothing else runs."""
_BUSY = 5
"""Times its deadline that a question may take, where others want the processor too."""
_MOST_ASKED = 20_000
"""Questions to one process: what its libraries remember of them adds up."""
_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "LANG")
"""What finds Python's packages; no key of ours is anything to a formula."""


class _Undecided(Exception):
    """No answer came in time, or the process died of the question."""


class _Worker:
    """One process. Raises RuntimeError where it does not start."""

    def __init__(self) -> None:
        self._asked = 0
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(math_worker.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
        )
        try:
            greeting = self._line(_START_S)
        except _Undecided:
            greeting = {"error": f"it said nothing within {_START_S:g} s, or died"}
        if "error" in greeting:
            self.kill()
            raise RuntimeError(f"The process that decides about mathematics did not start: {greeting['error']}")

    def ask(self, gold: str, said: str, deadline_s: float) -> dict[str, bool]:
        """Raises _Undecided; the process is of no more use then."""
        assert self._process.stdin is not None
        self._asked += 1
        limit_s = _BUSY * deadline_s
        question = {"gold": gold, "said": said, "cpu_s": deadline_s, "alarm_s": math.ceil(limit_s) + 1}
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
        except BrokenPipeError as error:
            raise _Undecided from error
        return self._line(limit_s)

    @property
    def is_old(self) -> bool:
        return self._asked >= _MOST_ASKED

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _line(self, deadline_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        poll = select.poll()
        poll.register(self._process.stdout, select.POLLIN)
        # A line is shorter than what a pipe takes in one piece: where some of it is, all of it is.
        line = self._process.stdout.readline() if poll.poll(deadline_s * 1000) else b""
        if not line:
            raise _Undecided
        answer: dict[str, Any] = json.loads(line)
        return answer


class MathWorkers:
    """All of this process."""

    def __init__(self, most: int) -> None:
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="math")
        self._idle: LifoQueue[_Worker] = LifoQueue()
        atexit.register(self.close)

    async def decide(self, gold: str, said: str, deadline_s: float) -> dict[str, bool] | None:
        """`is_parsed` (of the gold answer) and `is_equal`; None: not decided within the deadline.

        The deadline is in seconds of the processor, which a busy machine does not shorten. Raises RuntimeError where
        there is no process.
        """
        return await asyncio.wrap_future(self._threads.submit(self._decide, gold, said, deadline_s))

    def _decide(self, gold: str, said: str, deadline_s: float) -> dict[str, bool] | None:
        try:
            worker = self._idle.get_nowait()
        except Empty:
            worker = _Worker()
        try:
            decision = worker.ask(gold, said, deadline_s)
        except _Undecided:
            worker.kill()
            return None
        except BaseException:
            worker.kill()
            raise
        if worker.is_old:
            worker.kill()
        else:
            self._idle.put(worker)
        return decision

    def close(self) -> None:
        """Let what is asked be answered, and end the processes."""
        self._threads.shutdown()
        while not self._idle.empty():
            self._idle.get().kill()


def workers() -> MathWorkers:
    """Those of this process: a fork has no threads."""
    return _workers_of(os.getpid())


@cache
def _workers_of(pid: int) -> MathWorkers:
    return MathWorkers(min(_MOST, processors.count()))
