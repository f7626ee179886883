"""The doorbell on a real Redis: after the commit, never before, and never in its caller's way."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connection, transaction

from rollouts import bell
from rollouts.models import Run
from rollouts.services import metrics
from rollouts.services.runs import life
from rollouts.services.transitions import transition
from rollouts.states import RunState
from tests.factories import make_run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

LONG_S = 15.0
SHORT_S = 0.3


async def elsewhere(act: Callable[[], Any]) -> Any:
    """Do something in a thread with a connection of its own."""

    def run() -> Any:
        try:
            return act()
        finally:
            connection.close()

    return await sync_to_async(run, thread_sensitive=False)()


def stop(run: Run) -> list[int]:
    return transition(Run, [run.pk], to=RunState.STOPPING, actor="user:ada")


def server() -> redis.Redis:
    return redis.Redis.from_url(settings.REDIS_URL)


def test_a_change_rings_once_it_is_committed_and_not_before() -> None:
    run = make_run()
    changed, commit = threading.Event(), threading.Event()

    def change() -> None:
        with transaction.atomic():
            stop(run)
            changed.set()
            assert commit.wait(LONG_S)

    async def listen() -> None:
        async with bell.Listener() as listener:
            task = asyncio.create_task(elsewhere(change))
            await asyncio.to_thread(changed.wait, LONG_S)
            assert await listener.wait(SHORT_S) == set()
            commit.set()
            assert await listener.wait(LONG_S) == {run.key}
            await task

    asyncio.run(listen())


def test_a_change_that_is_rolled_back_never_rings() -> None:
    undone, done = make_run(), make_run()

    def change() -> None:
        with transaction.atomic():
            stop(undone)
            transaction.set_rollback(True)
        stop(done)

    async def listen() -> None:
        async with bell.Listener() as listener:
            await elsewhere(change)
            assert await listener.wait(LONG_S) == {done.key}
            assert await listener.wait(SHORT_S) == set()

    asyncio.run(listen())


def test_a_transaction_rings_once_per_run_however_much_it_changes() -> None:
    first, second = make_run(), make_run()

    def change() -> None:
        with transaction.atomic():
            for run in (first, second):
                for step in range(20):
                    metrics.record(run, step=step, values={"loss/mean": 1.0})
            assert len(connection.run_on_commit) == 2

    async def listen() -> None:
        async with bell.Listener() as listener:
            await elsewhere(change)
            assert await listener.wait(LONG_S) | await listener.wait(LONG_S) == {first.key, second.key}
            assert await listener.wait(SHORT_S) == set()

    asyncio.run(listen())


def test_what_flows_through_a_run_is_told_apart_from_what_changes_it_until_both_come_together() -> None:
    run = make_run()

    def flow() -> None:
        metrics.record(run, step=1, values={"loss/mean": 1.0})

    def both() -> None:
        with transaction.atomic():
            flow()
            stop(run)
            flow()

    async def listen() -> None:
        async with bell.Listener(bell.CHANGES) as changes, bell.Listener(bell.FLOWS) as flows:
            await elsewhere(flow)
            assert await flows.wait(LONG_S) == {run.key}
            assert await changes.wait(SHORT_S) == set()
            await elsewhere(both)
            assert await changes.wait(LONG_S) == {run.key}
            assert await flows.wait(SHORT_S) == set()

    asyncio.run(listen())


def test_a_listener_to_one_run_hears_no_other() -> None:
    mine, other = make_run(), make_run()

    async def listen() -> None:
        async with bell.Listener(bell.group_of(mine.key)) as listener:
            await elsewhere(lambda: stop(other))
            assert await listener.wait(SHORT_S) == set()
            await elsewhere(lambda: stop(mine))
            assert await listener.wait(LONG_S) == {mine.key}

    asyncio.run(listen())


def test_what_rings_between_two_waits_is_heard_by_the_second() -> None:
    run = make_run()

    async def listen() -> None:
        async with bell.Listener() as listener:
            assert await listener.wait(0.01) == set()
            await elsewhere(lambda: stop(run))
            await asyncio.to_thread(_until_published, run)
            assert await listener.wait(LONG_S) == {run.key}

    asyncio.run(listen())


def _until_published(run: Run) -> None:
    """A second subscriber of its own says that the ring has gone through Redis."""
    life.request_stop(run, actor="user:bob")
    connection.close()
    ears = server().pubsub()
    ears.subscribe(f"asgi__group__{bell.ALL_RUNS}")
    bell.ringer().ring(run.pk)
    deadline = time.monotonic() + LONG_S
    while time.monotonic() < deadline:
        message = ears.get_message(timeout=1.0)
        if message and message["type"] == "message":
            break
    ears.close()


def test_the_bell_survives_flushall_and_the_loss_of_every_subscription() -> None:
    run = make_run()

    async def listen() -> None:
        async with bell.Listener() as listener:
            await asyncio.to_thread(server().flushall)
            await elsewhere(lambda: stop(run))
            assert await listener.wait(LONG_S) == {run.key}

            await asyncio.to_thread(lambda: server().client_kill_filter(_type="pubsub"))
            deadline = time.monotonic() + LONG_S
            while await listener.wait(0.5) != {run.key}:
                assert time.monotonic() < deadline, "deaf after its connection was lost"
                bell.ringer().ring(run.pk)

    asyncio.run(listen())


@pytest.fixture
def silent_redis(settings: Any) -> Iterator[None]:
    """A Redis that accepts connections and never answers: worse than one that is down."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        host = f"redis://127.0.0.1:{server.getsockname()[1]}"
        layers = {"default": {**settings.CHANNEL_LAYERS["default"], "CONFIG": {"hosts": [{"address": host}]}}}
        settings.CHANNEL_LAYERS = layers
        yield


@pytest.mark.usefixtures("silent_redis")
def test_a_bell_that_hangs_neither_delays_nor_breaks_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bell, "SEND_DEADLINE_S", 60.0)
    run = make_run()
    for step in range(50):
        metrics.record(run, step=step, values={"loss/mean": 1.0})
    assert stop(run) == [run.pk]
    assert not bell.wait_until_sent(0), "it does not hang any more, so it may have delayed us"
    assert Run.objects.get().state == RunState.STOPPING


@pytest.mark.usefixtures("silent_redis")
def test_a_listener_without_a_bell_waits_no_longer_than_it_was_told() -> None:
    async def listen() -> float:
        listener = bell.Listener()
        began = time.monotonic()
        assert await listener.wait(SHORT_S) == set()
        return time.monotonic() - began

    assert SHORT_S <= asyncio.run(listen()) < LONG_S


def test_a_bell_that_cannot_even_be_made_is_not_its_callers_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(bell, "ringer", broken)
    run = make_run()
    with transaction.atomic():
        stop(run)
    assert Run.objects.get().state == RunState.STOPPING


def test_a_forked_process_rings_by_itself() -> None:
    parents = bell.ringer()
    with bell.ringer_lock:  # held at the fork by a thread that the child does not have
        child = os.fork()
        if child == 0:
            os._exit(0 if bell.ringer() is not parents else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_process_that_rang_can_end(tmp_path: Path) -> None:
    script = "import django; django.setup(); from rollouts import bell; bell.ringer().ring(1)"
    environ = os.environ | {
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "ROLLYARD_HOME": str(tmp_path),
        "ROLLYARD_LOG_LEVEL": "CRITICAL",
    }
    done = subprocess.run([sys.executable, "-c", script], env=environ, timeout=30, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_a_listener_that_is_cancelled_ends_whenever_that_is() -> None:
    async def hear() -> None:
        async with bell.Listener() as listener:
            while True:
                await listener.wait(LONG_S)

    async def cancel() -> None:
        for turns in range(60):
            task = asyncio.create_task(hear())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            done, _ = await asyncio.wait({task}, timeout=LONG_S)
            assert done, f"cancelled after {turns} turns of the loop it goes on"

    asyncio.run(cancel())


def test_who_waits_until_its_rings_are_sent_is_heard() -> None:
    run = make_run()

    async def listen() -> None:
        async with bell.Listener() as listener:
            await elsewhere(lambda: stop(run))
            assert await asyncio.to_thread(bell.wait_until_sent, LONG_S)
            assert await listener.wait(LONG_S) == {run.key}

    asyncio.run(listen())
    assert bell.wait_until_sent(0)
