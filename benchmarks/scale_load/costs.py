"""What one call of each kind costs the database, while the leases of all workers are held: milliseconds of CPU."""

import argparse
import subprocess
import time
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import psutil

from benchmarks.scale_load.machine import cpu_s
from benchmarks.scale_load.polls import Polls, pgbench
from benchmarks.scale_load.work import payload

_LOOKS = 2_000
_CALLS = 200


def costs(run: Any, polls: Polls, postgres: int, workers: int, options: argparse.Namespace) -> dict[str, Any]:
    """By kind: database CPU and wall of one call, from one client that waits for each; and what of a claim's wall keeps
    others from claiming."""
    from rollouts.services.groups import leases, settling

    lease_s, slots = 3_600.0, options.episodes // options.group_size
    rooms = {ref.run_name: slots for ref in run.parsed.environments}

    def claim(limit: int = 1, at: int = 0) -> Any:
        answered = leases.claim(run, holder=f"stub-{at}:1", limit=limit, lease_s=lease_s, rooms=rooms)
        return answered.claims

    held = [claim(slots, at) for at in range(workers)]
    rollouts = payload(options, str(options.seed))
    tokens = [[each.token for each in claims] for claims in held]
    taken = [each for claims in held for each in claims]

    def settle(at: int) -> None:
        played = [copy(each) for each in rollouts]
        played[0].reward = 1.0
        settling.settle(token=taken[at].token, problem_key=f"p{at}", rollouts=played, worker="stub-0:1")

    top = psutil.Process(postgres)

    def run_pgbench(file: Path) -> None:
        here = len(top.children())
        command = [*pgbench(), "--client=1", f"--transactions={_LOOKS}", f"--file={file}"]
        subprocess.run(command, check=True, capture_output=True)
        while len(top.children()) > here:  # its seconds are known when the postmaster has noticed its end
            time.sleep(0.01)

    found = {
        "look": _one(postgres, lambda: run_pgbench(polls.look), _LOOKS),
        "report": _one(postgres, lambda: run_pgbench(polls.report), _LOOKS),
        "renew": _many(postgres, lambda at: leases.renew(tokens[at % workers], lease_s=lease_s)),
        "settle": _many(postgres, settle),
        "claim": _many(postgres, lambda at: claim(1, at)),
        "claim of none": _many(postgres, lambda at: claim(0, at)),
    }
    return found


def _many(postgres: int, call: Callable[[int], Any]) -> dict[str, float]:
    def calls() -> None:
        for at in range(_CALLS):
            call(at)

    return _one(postgres, calls, _CALLS)


def _one(postgres: int, calls: Callable[[], Any], count: int) -> dict[str, float]:
    before, began = cpu_s(postgres), time.monotonic()
    calls()
    wall = time.monotonic() - began
    return {
        "database_cpu_ms": round(1000 * (cpu_s(postgres) - before) / count, 3),
        "wall_ms": round(1000 * wall / count, 2),
    }
