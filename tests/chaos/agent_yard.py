"""The processes of a run that agents play, as `rollyard up` keeps them, and means to kill them.

    Supervisor ──▶ drivers ──▶ processes of the environment, each in its sandbox
         └───────▶ the gateway of sessions from outside
    reconciler ──▶ replicas (`agent_engine`), the trainer's place
    web server     not killed: what it survives is the business of `storm.py`

Supervisor, drivers, gateway, sandboxes and web server are the product's own. The reconciler is, too, in a thread of the
test: it starts, watches, ejects and replaces replicas and ends the run. Two things stand in for what needs a model: the
engine that speaks, and a trainer over HTTP (`agents.py`) beside a process that only holds the trainer's place.
"""

import asyncio
import contextlib
import os
import random
import secrets
import socket
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
import pytest
from django.conf import settings

from controlplane.up.console import Console
from controlplane.up.processes import UP_VARIABLE, Program, of_up
from controlplane.up.supervisor import Service, Supervisor
from rollouts.models import AgentSession, Lease, Replica, ReplicaKind, Run
from rollouts.states import ReplicaState
from tests.browser.server import environment
from tests.chaos import agent_engine
from tests.e2e.yard import lives
from tests.workers.reconciling import STAY, train_with
from tests.workers.waiting import eventually
from workers.fleet import inference, lifecycle, serving, training
from workers.launchers import confinement
from workers.launchers.processes import carriers

KINDS = ("gateway", "environment", "replica", "driver")
DRIVERS = 2
MEAN_PAUSE_S = 0.8
BACK_WITHIN_S = 60.0
"""Within this a killed process has to be back by itself."""
BUSY_WITHIN_S = 5.0
"""So long a kill waits for somebody who is at work; then it takes whom it finds."""
HOST = "environments.isolated.host"
_MANAGE = (sys.executable, "-m", "controlplane.cli.main")


class Victim(NamedTuple):
    """A process that may be killed now."""

    process: psutil.Process
    is_busy: bool
    """Whether there is work under way that this kill may hit."""


class AgentYard:
    """The gateway and the drivers under one supervisor, which lives in a thread of its own."""

    def __init__(self, up_id: str, log: Path, listener: socket.socket) -> None:
        self.up_id = up_id
        self._url = _url_of(listener)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="supervisor")
        self._thread.start()
        self._supervisor = Supervisor(up_id, environment(), settings.HOME.path, Console(log, quiet=True, as_json=False))
        gateway = Program("gateway", (*_MANAGE, "gateway", "--fd", str(listener.fileno())))
        celery = [sys.executable, "-m", "celery", "-q", "-A", "controlplane.celery", "worker", "-Q", "episodes"]
        celery += ["--pool", "threads", "--concurrency", "2", "--without-gossip", "--without-mingle"]
        hushed = {"PYTHONWARNINGS": "ignore:You're running the worker"}
        self.services = {"gateway": [Service("gateway", lambda: gateway, self.answers, pass_fds=[listener.fileno()])]}
        self.services["driver"] = [
            Service(name, lambda name=name: Program(name, (*celery, "-n", f"{name}@%h"), environ=hushed))  # type: ignore[misc]
            for name in (f"driver-{number}" for number in range(DRIVERS))
        ]

    def start(self) -> None:
        """Return once the gateway answers and the drivers are started."""
        self._do(self._start(), within_s=90)

    async def _start(self) -> None:
        await asyncio.gather(*(self._supervisor.keep(each) for kind in self.services.values() for each in kind))

    def stop(self) -> None:
        """End them as Ctrl-C does."""
        try:
            self._do(self._supervisor.stop(), within_s=60)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(30)

    def _do(self, work: Coroutine[Any, Any, None], *, within_s: float) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(within_s)

    def answers(self) -> bool:
        """Whether the gateway does."""
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self._url}/health", timeout=5, trust_env=False).is_success
        return False

    def victims(self, run: Run, kind: str) -> list[Victim]:
        """The processes of a kind that do what they are there for."""
        if kind == "gateway":
            is_busy = AgentSession.objects.filter(run=run, finished_at=None).exists()
            return [Victim(each, is_busy) for each in self._living(kind)] if self.answers() else []
        holders = set(Lease.objects.filter(run=run).values_list("holder", flat=True))
        at_work = {int(name.rpartition(":")[2]) for name in holders}
        drivers = at_work & {each.pid for each in self._living("driver")}
        if kind == "driver":
            return [Victim(each, each.pid in drivers) for each in self._living(kind)]
        if kind == "environment":
            return [Victim(each, _is_below(each, drivers)) for each in _running(of_up(self.up_id), HOST)]
        rows = Replica.objects.filter(run=run, kind=ReplicaKind.INFERENCE, state=ReplicaState.READY)
        pids = {pid for row in rows for pid in carriers(str(row.token))}
        return [Victim(each, bool(drivers)) for each in _running(pids, agent_engine.__name__)]

    def _living(self, kind: str) -> list[psutil.Process]:
        found = []
        for service in self.services[kind]:
            with contextlib.suppress(psutil.NoSuchProcess):
                if service.process is not None and lives(process := psutil.Process(service.process.pid)):
                    found.append(process)
        return found

    def of_run(self) -> list[str]:
        """What lives of the run's own processes: environments and replicas, with zombies of ours."""
        found = [f"environment {each.pid}" for each in _running(of_up(self.up_id), HOST)]
        found += [f"{row.name} {pid}" for row in Replica.objects.all() for pid in carriers(str(row.token))]
        for service in self._living("driver"):
            dead = [each for each in service.children(recursive=True) if not lives(each)]
            found += [f"zombie {each.pid} of driver {service.pid}" for each in dead]
        return found


class Killer:
    """Kills one process after another, of every kind equally often."""

    def __init__(self, yard: AgentYard, run: Run, seed: int) -> None:
        self.kills: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()
        """Of processes that were at work."""
        self.waited_s: defaultdict[str, float] = defaultdict(float)
        """For each kind to be back when it was to be killed."""
        self.struck_at = time.monotonic()
        self._yard = yard
        self._run = run
        self._dice = random.Random(seed)
        self._left: list[str] = []

    def strike(self) -> None:
        """Wait until some process of the next kind is at work, pause, kill one."""
        self._left = self._left or self._dice.sample(KINDS, len(KINDS))
        kind, choice, pause_s = self._left.pop(), self._dice.random(), self._dice.expovariate(1 / MEAN_PAUSE_S)
        began_at = time.monotonic()

        def found() -> list[Victim]:
            victims = self._yard.victims(self._run, kind)
            busy = [each for each in victims if each.is_busy]
            return busy or (victims if time.monotonic() - began_at > BUSY_WITHIN_S else [])

        while True:
            eventually(found, within_s=BACK_WITHIN_S, what=f"{kind} is back")
            self.waited_s[kind] += time.monotonic() - began_at
            time.sleep(pause_s)  # the random moment is the point of it
            if victims := found():
                victim = victims[int(choice * len(victims))]
                with contextlib.suppress(psutil.NoSuchProcess):
                    victim.process.kill()
                    break
        eventually(lambda: not lives(victim.process), within_s=10)  # to wait for it would be to reap it: not ours to do
        self.kills[kind] += 1
        self.hits[kind] += victim.is_busy
        self.struck_at = time.monotonic()


def _running(pids: set[int], module: str) -> Iterator[psutil.Process]:
    """Those of some processes that are the program itself: shims and sandboxes carry its command, too."""
    for pid in sorted(pids):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.cmdline()[1:3] == ["-m", module] and lives(process):
                yield process


def _is_below(process: psutil.Process, pids: set[int]) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(each.pid in pids for each in process.parents())
    return False


def _url_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket of the gateway, which is held for it while it is dead, and its address for every process."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        monkeypatch.setenv("ROLLYARD_GATEWAY_URL", _url_of(listener))
        yield listener


def let_engines_speak(monkeypatch: pytest.MonkeyPatch, runs: Path, model: Path) -> str:
    """Let the reconciler of this process start engines that speak; returns an id that all that is started carries."""
    up_id = secrets.token_hex(8)
    monkeypatch.setenv(UP_VARIABLE, up_id)
    monkeypatch.setenv("ROLLYARD_RUNS_DIR", str(runs))
    monkeypatch.setattr(settings, "ROLLYARD_RUNS_DIR", runs)
    monkeypatch.setenv(confinement.READABLE_VARIABLE, os.pathsep.join([str(Path(__file__).parents[1]), str(model)]))
    engine = [sys.executable, "-m", agent_engine.__name__]
    monkeypatch.setattr(inference, "argv", lambda _model, path, _config, **_: [*engine, str(path), str(model)])
    train_with(monkeypatch, STAY)
    for module, name, value in [
        (serving, "PROBE_EVERY_S", 1.0),
        (serving, "PROBE_PAUSE_S", 0.2),
        (serving, "PROBE_DEADLINE_S", 5.0),
        (lifecycle, "GRACE_S", 0.5),
        (training, "EXIT_DEADLINE_S", 0.5),  # the process that holds the trainer's place never ends by itself
    ]:
        monkeypatch.setattr(module, name, value)
    return up_id
