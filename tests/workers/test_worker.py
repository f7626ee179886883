"""Real worker processes of the broker: killed, told to end, and cut off from Redis."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.conf import settings
from django.db.models.functions import Now

from rollouts.models import Lease, Run, ScoredGroup
from rollouts.services.runs import life
from rollouts.states import GroupState
from tests import store
from tests.workers.making import make_server, make_started_run
from tests.workers.stub_server import StubServer, stub_server
from tests.workers.waiting import eventually
from workers import tasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

NO_REDIS = "unix:///nowhere/redis.sock"


@pytest.fixture
def stub() -> Iterator[StubServer]:
    with stub_server() as server:
        yield server


@contextmanager
def worker(redis_url: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker on the test's database, as the supervisor starts it."""
    argv = [sys.executable, "-m", "celery", "-q", "-A", "controlplane.celery", "worker", "-Q", "episodes"]
    argv += ["--pool", "threads", "--concurrency", "4", "--without-gossip", "--without-mingle"]
    environ = {
        **os.environ,
        "DATABASE_URL": store.url(),
        "REDIS_URL": redis_url,
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "PYTHONWARNINGS": "ignore:You're running the worker",
    }
    process = subprocess.Popen(argv, env=environ)
    try:
        yield process
    finally:
        process.kill()
        process.wait(20)


def ended(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None


def playing(run: Run, groups: int) -> bool:
    return ScoredGroup.objects.filter(run=run, state=GroupState.PLAYING).count() == groups


def ready(run: Run, groups: int) -> bool:
    return ScoredGroup.objects.filter(run=run, state=GroupState.READY).count() == groups


def test_worker_without_redis_still_plays(stub: StubServer) -> None:
    run = make_started_run()
    make_server(run, stub.url)
    with worker(NO_REDIS):
        eventually(lambda: ready(run, 4))


def test_groups_of_a_killed_worker_are_played_by_the_next(stub: StubServer) -> None:
    run = make_started_run(workers__lease_s=3.0)
    make_server(run, stub.url)
    stub.mode = "hang"
    with worker(settings.REDIS_URL) as first:
        eventually(lambda: playing(run, 2))
        first.kill()
        eventually(lambda: ended(first))
    stub.mode = "ok"
    with worker(settings.REDIS_URL):
        eventually(lambda: ready(run, 4))
    assert ScoredGroup.objects.filter(run=run, lease_count=2).count() == 2
    assert ScoredGroup.objects.filter(run=run).count() == 4


@pytest.mark.parametrize("is_rung", [True, False])
def test_worker_that_is_told_to_end_gives_its_leases_back(stub: StubServer, is_rung: bool) -> None:
    run = make_started_run(workers__lease_s=600.0)
    make_server(run, stub.url)
    stub.mode = "hang"
    with worker(settings.REDIS_URL) as process:
        if is_rung:
            tasks.ring(run.pk)
        eventually(lambda: playing(run, 2))
        process.send_signal(signal.SIGTERM)
        eventually(lambda: ended(process))
    assert process.returncode == 0
    assert not Lease.objects.filter(run=run, expires_at__gt=Now()).exists()
    stub.mode = "ok"
    with worker(settings.REDIS_URL):
        eventually(lambda: ready(run, 4))
    assert not Lease.objects.filter(run=run).exists()
    life.request_stop(run, actor="user:admin")
