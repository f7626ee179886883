"""Ranks without a start: a process that has imported the trainers, and forks ranks for every call.

    test ── a line of JSON ──► crew ── fork ──► N ranks: a process group, the call, a file with what it returns
         ◄─ how they ended ──       ◄─ wait ──

Most of a trainer's start is imports. Tests of what ranks compute together need them once; a test of starting, dying or
exit statuses starts a trainer of its own (`tests/trainers/support.py`). The crew computes nothing itself and has one
thread, so its children may compute in many.
"""

import faulthandler
import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from tests.trainers.control_plane import RUN
from trainers.distributed.gloo import SERIAL_GLOO, register_serial_gloo
from trainers.distributed.mesh import die_with_parent

CALL_DEADLINE_S = 240


class CrewError(Exception):
    """A rank raised, died, or took too long; the message has what the ranks printed."""


class Crew:
    """Ranks on call. Their parent starts at the first."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        """Where the ranks of all calls meet."""
        self._calls = 0

    def train(self, kind: str, url: str, ranks: int = 1, **variables: str) -> None:
        """Do what `torchrun -m trainers.<kind>` does for the run at `url`. Raises CrewError where that ends badly."""
        environment = {"ROLLYARD_URL": url, "ROLLYARD_TOKEN": "t", "ROLLYARD_RUN": RUN, **variables}
        self.call(ranks, f"trainers.{kind}:train", environment=environment)

    def call(self, ranks: int, function: str, *arguments: Any, environment: dict[str, str] | None = None) -> list[Any]:
        """Call ``module:function`` with these arguments on that many ranks; returns what each of them returns.

        Arguments and results are JSON. Raises CrewError unless every rank returns within CALL_DEADLINE_S.
        """
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.trainers.crew", str(self._store.port)],
                env=os.environ | {"OMP_NUM_THREADS": "1", "WANDB_API_KEY": ""},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._calls += 1
        directory = self._directory / f"call_{self._calls}"
        directory.mkdir()
        wish = {"function": function, "arguments": arguments, "environment": environment or {}}
        print(json.dumps(wish | {"ranks": ranks, "directory": str(directory)}), file=self._process.stdin, flush=True)
        if self._process.stdout.readline() != "returned\n":
            raise CrewError((directory / "log").read_text(errors="replace"))
        return [json.loads((directory / str(rank)).read_text()) for rank in range(ranks)]

    def stop(self) -> None:
        """End the crew."""
        if self._process is not None:
            self._process.communicate()  # the end of its input is its end


def main() -> None:
    """Answer calls until the test goes away."""
    die_with_parent()
    for module in ("trainers.rl", "trainers.sft"):
        importlib.import_module(module)
    for line in sys.stdin:
        print("returned" if _answer(json.loads(line)) else "failed", flush=True)


def _answer(wish: dict[str, Any]) -> bool:
    """Whether every rank returned. When one did not, the others are ended."""
    log = os.open(f"{wish['directory']}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    ranks = set()
    for rank in range(wish["ranks"]):
        if (pid := os.fork()) == 0:
            _be_rank(wish, rank, log)
        ranks.add(pid)
    os.close(log)
    failed = False
    while ranks:
        pid, status = os.wait()
        ranks.discard(pid)
        if status != 0 and not failed:
            failed = True
            for other in ranks:
                os.kill(other, signal.SIGKILL)
    return not failed


def _be_rank(wish: dict[str, Any], rank: int, log: int) -> NoReturn:
    status = 1
    try:
        die_with_parent()
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.register(signal.SIGALRM, chain=True)  # says where it is, then ends it
        signal.alarm(CALL_DEADLINE_S)
        size, local = wish["ranks"], {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        os.environ.update(wish["environment"], **local, WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
        torch.set_num_threads(1)
        register_serial_gloo()
        store = dist.PrefixStore(wish["directory"], dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False))
        dist.init_process_group(SERIAL_GLOO, store=store, rank=rank, world_size=size)
        module, _, name = wish["function"].partition(":")
        result = getattr(importlib.import_module(module), name)(*wish["arguments"])
        Path(wish["directory"], str(rank)).write_text(json.dumps(result))
        dist.barrier()
        status = 0
    finally:
        if status:
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
