"""Make the environments of a run: ours here, everybody else's in a process and a sandbox of its own.

What Rollyard ships is part of the control plane. Code from elsewhere would otherwise run beside the store's password.
"""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from environments import registry
from environments.env import Environment
from environments.isolated import Isolated
from rollouts.models import Run
from rollouts.reasons import Reason, ReasonCode
from workers.launchers import confinement, limits, sandbox
from workers.launchers.processes import with_descendants

_watches: dict[Isolated, "asyncio.Task[None]"] = {}
_looking = ThreadPoolExecutor(1, thread_name_prefix="limits")
"""For the looks alone: the event loop's own threads may all wait for an environment that does not answer."""


async def load(run: Run, name: str, args: dict[str, Any]) -> Environment[Any]:
    """The environment `name` of a run. Raises RegistryError, EnvironmentDied, SandboxUnavailable, TimeoutError.

    The process of an isolated one ends with `close`, and with the thread of this event loop.
    """
    if registry.is_built_in(name):
        return await asyncio.to_thread(registry.load, name, args)
    scratch = run.directory / "environments" / re.sub(r"\W", "_", name)
    process = await _start(scratch)
    environment = Isolated(name, process)
    _watches[environment] = asyncio.create_task(_watch(environment, process.pid))
    try:
        await environment.load(args)
    except BaseException:
        await close(environment)
        raise
    return environment


async def close(environment: Environment[Any]) -> None:
    """End what `load` started. May be repeated."""
    if isinstance(environment, Isolated):
        if watch := _watches.pop(environment, None):
            watch.cancel()
        await environment.aclose()


def is_usable(environment: Environment[Any]) -> bool:
    """Whether it can still be asked: the process of an isolated one may have died."""
    return not isinstance(environment, Isolated) or environment.is_alive


async def _start(scratch: Path) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "environments.isolated_host"]
    room = await asyncio.to_thread(confinement.make, scratch)
    with contextlib.ExitStack() as starting:
        entry = starting.enter_context(sandbox.Entry(room, command)) if room else None
        process = await asyncio.create_subprocess_exec(
            *limits.capping(limits.default()),
            *(entry.argv if entry else command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=entry.pass_fds if entry else (),
            cwd=scratch,
            env={
                **(confinement.variables(scratch) if room else os.environ),
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            },
        )
    if entry:
        try:
            await asyncio.to_thread(entry.pid_one)
        except TimeoutError:
            process.kill()
            raise
    return process


async def _watch(environment: Isolated, pid: int) -> None:
    """End an environment whose processes use more than a replica may, as its shepherd would."""
    bounds, loop = limits.default(), asyncio.get_running_loop()
    while environment.is_alive:
        await asyncio.sleep(limits.LOOK_EVERY_S)
        if excess := await loop.run_in_executor(_looking, _find_excess, bounds, pid):
            reason = Reason(ReasonCode.LIMIT_EXCEEDED, exit_code=None, **excess._asdict())
            await environment.end(str(reason))


def _find_excess(bounds: limits.Limits, pid: int) -> limits.Excess | None:
    return limits.find_excess(bounds, with_descendants({pid}))
