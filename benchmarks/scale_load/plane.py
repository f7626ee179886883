"""The reconciler, as it is, with a launcher that starts stub replicas and no trainer.

python -m benchmarks.scale_load.plane
"""

import asyncio
import itertools
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import django

from benchmarks.scale_load.programs import answer
from workers.launchers.base import Handle, LaunchSpec, Observation


class StubLauncher:
    """Whatever it started is alive. An inference server is a socket of the process of stub replicas."""

    def __init__(self) -> None:
        self.servers = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.scale_load.servers"], stdin=subprocess.PIPE, text=True
        )

    def start(self, spec: LaunchSpec) -> Handle:
        """Open the socket of a server; a trainer comes by itself."""
        if spec.serves is not None:
            assert self.servers.stdin is not None
            self.servers.stdin.write(f"{spec.serves}\n")
            self.servers.stdin.flush()
        return Handle(spec.token, spec.directory)

    def poll(self, handle: Handle) -> Observation:
        """Alive."""
        return Observation(alive=True, heartbeat_age_s=0.0)

    def stop(self, handle: Handle, deadline_s: float) -> Observation:
        """Ended as asked."""
        return Observation(alive=False, exit_code=0)

    def living(self) -> set[str]:
        """Nobody's but ours."""
        return set()

    def sweep(self, token: str, deadline_s: float) -> list[int]:
        """There is nothing to end."""
        return []

    def bring(self, handle: Handle, path: Path) -> None:
        """It sees our disk."""

    def logs(self, handle: Handle, lines: int) -> str:
        """It says nothing."""
        return ""


class Passes:
    """What the passes over the run took."""

    def __init__(self, converge: Any) -> None:
        self._converge = converge
        self.began: list[float] = []
        self.seconds: list[float] = []

    def __call__(self, run_id: int) -> None:
        began = time.monotonic()
        self._converge(run_id)
        self.began.append(began)
        self.seconds.append(time.monotonic() - began)

    def told(self) -> dict[str, Any]:
        """Since the last time this was asked."""
        began, seconds = self.began, self.seconds
        self.began, self.seconds = [], []
        between = [later - earlier for earlier, later in itertools.pairwise(began)]
        return {"pass_s": seconds, "period_s": between}


def main() -> None:
    django.setup()
    logging.disable(logging.INFO)
    from workers.convergence import Convergence
    from workers.fleet import lifecycle
    from workers.reconciler import Reconciler

    launcher = StubLauncher()
    lifecycle._LAUNCHERS["local"] = launcher
    passes = Passes(Convergence().converge)
    reconciler = Reconciler(converge=passes, ring=lambda run_id: None)
    ending = threading.Event()
    threading.Thread(target=answer, args=({"told": passes.told}, ending), daemon=True).start()

    async def reconcile() -> None:
        running = asyncio.create_task(reconciler.run())
        await asyncio.to_thread(ending.wait)
        reconciler.stop()
        await running

    asyncio.run(reconcile())
    assert launcher.servers.stdin is not None
    launcher.servers.stdin.close()
    launcher.servers.wait()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
