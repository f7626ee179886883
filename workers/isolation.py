"""Make the environments of a run: ours here, everybody else's in a process and a sandbox of its own.

What Rollyard ships is part of the control plane. Code from elsewhere would otherwise run beside the store's password.
"""

import asyncio
import contextlib
import math
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from django.conf import settings

from environments import registry, venvs
from environments.env import Environment
from environments.errors import RegistryError
from environments.isolated import Isolated
from environments.isolated.frames import GATEWAY_SOCKET, TOKENIZER
from environments.sandbox import cell, tools
from environments.sandbox.remote import SandboxService
from environments.types import Split
from rollouts.models import Run
from rollouts.reasons import Reason, ReasonCode
from trainers.run_config import EnvironmentRef
from workers.fleet import hub, lifecycle
from workers.launchers import confinement, limits, sandbox
from workers.launchers.processes import living, with_descendants

_NICENESS = 10
"""What blocks or spins in an environment must not take the machine from the policy and the others."""
_THREADS = 512
"""Of a process and all that it starts: a fork bomb is held here."""

_watches: dict[Isolated, "asyncio.Task[None]"] = {}
_looking = ThreadPoolExecutor(1, thread_name_prefix="limits")
"""For the looks alone: the event loop's own threads may all wait for an environment that does not answer."""


class _Interpreter(NamedTuple):
    """What runs an environment."""

    python: str
    shown: list[Path]
    """Directories that it needs besides ours."""
    variables: dict[str, str]


def is_isolated(ref: EnvironmentRef) -> bool:
    """Whether it has processes of its own."""
    return ref.process == "isolated" or bool(ref.python) or not registry.is_ours_alone(ref.name, ref.args)


def scratch_of(run: Run, ref: EnvironmentRef) -> Path:
    """Where its processes write."""
    return run.directory / "environments" / re.sub(r"\W", "_", ref.run_name)


async def load(run: Run, ref: EnvironmentRef, gateway_socket: Path | None = None) -> Environment[Any]:
    """An environment of a run. Raises RegistryError, EnvironmentDied, SandboxUnavailable, TimeoutError.

    The process of an isolated one ends with `close`, and with the thread of this event loop. `gateway_socket`: where it
    finds the addresses of its sessions.
    """
    if not is_isolated(ref):
        return await asyncio.to_thread(registry.load, ref.name, ref.args)
    # Before there is a process: where programs have no sandbox, nothing is left behind.
    service = SandboxService(tools.showing(_interpreter(ref).python if ref.python else ""))
    process = await _start(run, ref, gateway_socket)
    environment = Isolated(ref.name, process, tool=service.serve)
    _watches[environment] = asyncio.create_task(_watch(environment, _limits(ref)))
    try:
        await environment.load(ref.args)
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


async def _start(run: Run, ref: EnvironmentRef, gateway_socket: Path | None) -> asyncio.subprocess.Process:
    """Start the process of an environment, and wait until it begins, or is gone again. Given up, it leaves nothing."""
    # Not cancelled with us: bwrap that is killed before it told of its child leaves that behind.
    making = asyncio.create_task(_make(run, ref, gateway_socket))
    try:
        made = await asyncio.shield(making)
        if made.first is not None:
            await _let_begin(made.process)
    except BaseException:
        with contextlib.suppress(Exception):
            (await making).end()
        raise
    if made.first is not None:
        os.close(made.first)
    return made.process


class _Made(NamedTuple):
    """A process, and the descriptor of its sandbox's first one; None: it has no sandbox, or none any more."""

    process: asyncio.subprocess.Process
    first: int | None

    def end(self) -> None:
        """End all of it, and let go of it. Not left to bwrap's own death: a sandbox half made is not tied to it yet."""
        if self.first is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.first, signal.SIGKILL)
            os.close(self.first)
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process._transport.close()  # type: ignore[attr-defined]


async def _make(run: Run, ref: EnvironmentRef, gateway_socket: Path | None) -> _Made:
    interpreter = _interpreter(ref)
    command = [interpreter.python, "-m", "environments.isolated.host"]
    scratch = scratch_of(run, ref)
    shown = [*interpreter.shown, *_allowed_paths(ref), *([gateway_socket.parent] if gateway_socket else [])]
    model = run.parsed.model.path
    tokenizer = await asyncio.to_thread(hub.tokenizer_directory, model)
    shown += hub.places(model, "model") if tokenizer else []
    ours = [*lifecycle.own_places(), settings.ROLLYARD_HOME / venvs.DIRECTORY]
    room = await asyncio.to_thread(confinement.make, scratch, reads=shown, ours=ours)
    with contextlib.ExitStack() as starting:
        entry = starting.enter_context(sandbox.Entry(room, cell.waiting(command))) if room else None
        process = await asyncio.create_subprocess_exec(
            *limits.capping(_limits(ref)),
            *("nice", "-n", str(_NICENESS)),
            *(entry.argv if entry else command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=entry.pass_fds if entry else (),
            cwd=scratch,
            env={
                **(confinement.variables(scratch) if room else os.environ),
                **interpreter.variables,
                **({GATEWAY_SOCKET: str(gateway_socket)} if gateway_socket else {}),
                **({TOKENIZER: str(tokenizer)} if tokenizer else {}),
                **({"HF_HUB_CACHE": str(hub.cache())} if registry.data_of(ref.name, ref.args) else {}),
            },
        )
    if entry is None:
        return _Made(process, None)
    try:
        pid = await asyncio.to_thread(entry.pid_one)
        return _Made(process, os.pidfd_open(pid) if pid else None)
    except ProcessLookupError:
        return _Made(process, None)
    except BaseException:
        _Made(process, None).end()
        raise


async def _let_begin(process: asyncio.subprocess.Process) -> None:
    """Wait until its sandbox is made, and let it begin. Raises TimeoutError."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(sandbox.SETUP_DEADLINE_S):
            await process.stdout.readexactly(len(cell.BEGINNING))
    except TimeoutError:
        raise TimeoutError(sandbox.TOOK_TOO_LONG) from None
    except asyncio.IncompleteReadError:
        return  # gone: who asks it something is told so, with its last words
    process.stdin.write(cell.BEGINNING)


def _interpreter(ref: EnvironmentRef) -> _Interpreter:
    """Ours, or that of a virtual environment, which has `environments` by a link. Raises RegistryError."""
    if not ref.python:
        return _Interpreter(sys.executable, [], {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)})
    try:
        python = venvs.find(settings.ROLLYARD_HOME / venvs.DIRECTORY, ref.python)
    except venvs.VenvError as error:
        raise RegistryError(str(error)) from None
    behind = python.resolve().parent.parent
    is_ours = behind in (Path(sys.base_prefix).resolve(), Path(sys.executable).resolve().parent.parent)
    # Ours is shown in every sandbox.
    return _Interpreter(str(python), [python.parent.parent, *([] if is_ours else [behind])], {"PYTHONPATH": ""})


def _allowed_paths(ref: EnvironmentRef) -> list[Path]:
    """Code on this machine that an administrator allowed by its path, and the data set that was checked at the launch.

    What other arguments name is shown to nobody.
    """
    named = registry.named_by_bridge(ref.name, ref.args).partition(":")[0]
    code = [Path(named)] if os.path.isabs(named) else []
    return code + hub.places(registry.data_of(ref.name, ref.args), "dataset")


async def count(environment: Environment[Any], split: Split) -> int:
    """How many problems a split has. Raises whatever the environment's code does, and TimeoutError."""
    if isinstance(environment, Isolated):
        return await environment.ask_count(split)
    return await asyncio.to_thread(environment.count, split)


def _limits(ref: EnvironmentRef) -> limits.Limits:
    general = limits.default()
    memory = min(int(ref.memory_gib * 2**30), general.memory_bytes)
    return replace(general, memory_bytes=memory, threads=min(_THREADS, general.threads), memory_setting="memory_gib")


async def _watch(environment: Isolated, bounds: limits.Limits) -> None:
    """End an environment whose processes use more than they may."""
    loop = asyncio.get_running_loop()
    while environment.is_alive:
        await asyncio.sleep(limits.LOOK_EVERY_S)
        if excess := await loop.run_in_executor(_looking, _look.find_excess, bounds, environment.pid):
            reason = Reason(ReasonCode.LIMIT_EXCEEDED, exit_code=None, **excess._asdict())
            await environment.end(str(reason))


class _Look:
    """At all processes of the machine, for all environments that are watched: each alone would take as long."""

    def __init__(self) -> None:
        self._at = -math.inf
        self._living: dict[int, list[int]] = {}

    def find_excess(self, bounds: limits.Limits, pid: int) -> limits.Excess | None:
        if time.monotonic() - self._at > limits.LOOK_EVERY_S / 2:
            self._living, self._at = living(), time.monotonic()
        return limits.find_excess(bounds, with_descendants({pid}, self._living))


_look = _Look()
