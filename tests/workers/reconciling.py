"""A reconciler in a thread, and looks at what it does."""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rollouts.models import PolicyVersion, Replica, ReplicaKind, Run
from rollouts.selectors import fleet
from rollouts.states import ReplicaState
from tests.workers.waiting import eventually
from trainers.run_config import RunConfig
from workers.fleet import commands
from workers.launchers.processes import carriers
from workers.reconciler import Reconciler

STAY = "import signal; print('training', flush=True); signal.pause()"
CRASH = "raise ValueError('no such model')"


def train_with(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Let the trainer be a program of a line, in the environment that the real one would have."""
    trainer = commands.trainer

    def other(config: RunConfig, **options: Any) -> commands.Command:
        return trainer(config, **options)._replace(argv=[sys.executable, "-c", program])

    monkeypatch.setattr(commands, "trainer", other)


@contextmanager
def reconciling(**options: Any) -> Iterator[Reconciler]:
    """A reconciler in a thread of its own."""
    started = threading.Event()
    box: list[tuple[Reconciler, asyncio.AbstractEventLoop]] = []

    async def main() -> None:
        reconciler = Reconciler(**{"interval_s": 0.2, "ring": lambda run_id: None, **options})
        box.append((reconciler, asyncio.get_running_loop()))
        started.set()
        await reconciler.run()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert started.wait(20)
    reconciler, loop = box[0]
    try:
        yield reconciler
    finally:
        loop.call_soon_threadsafe(reconciler.stop)
        thread.join(60)
        assert not thread.is_alive()
        reconciler.threads.shutdown(wait=True)
        reconciler.ending.shutdown(wait=True)


def state(run: Run) -> str:
    return Run.objects.get(pk=run.pk).state


def replica(
    run: Run, kind: ReplicaKind, in_state: ReplicaState, *, other_than: int = 0
) -> Callable[[], Replica | None]:
    found = Replica.objects.filter(run=run, kind=kind, state=in_state).exclude(pk=other_than)
    return lambda: found.all().first()


def ready_server(run: Run, *, other_than: int = 0, policy: str = "") -> Replica:
    serving = fleet.list_serving(run, policy=policy).exclude(pk=other_than)
    found = eventually(lambda: serving.all().first())
    assert found is not None
    return found


def processes(run: Run) -> set[int]:
    return {pid for row in Replica.objects.filter(run=run) for pid in carriers(str(row.token))}


def is_live(run: Run, version: int) -> Callable[[], bool]:
    return lambda: Run.objects.get(pk=run.pk).live_version == version


def child_pid(row: Replica) -> int:
    record = Path(row.directory) / "started.json"
    eventually(record.exists)
    content: dict[str, int] = msgspec.json.decode(record.read_bytes())
    return content["child_pid"]


def write_version(run: Run, version: int, *, size_bytes: int = 0) -> PolicyVersion:
    """Files that look like weights, and their row."""
    path = Run.objects.get(pk=run.pk).directory / "weights" / f"step_{version}"
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"")
    return PolicyVersion.objects.create(run=run, version=version, path=str(path), size_bytes=size_bytes)
