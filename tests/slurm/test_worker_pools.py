"""Pools of workers on a real SLURM: as many jobs as the file says, whatever becomes of them."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from rollouts.models import KeptPool, WorkerJob
from tests.accounts import let_others_pass
from tests.e2e.yard import until
from tests.slurm.cluster import Cluster
from workers import worker_pools
from workers.fleet.keys import mark_of_workers
from workers.slurm import workers
from workers.worker_pools import MAX_FAILED, Work, WorkerPools

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.django_db]

WORKER = f"{sys.executable} -c 'import signal; signal.signal(signal.SIGUSR2, signal.SIG_DFL); signal.pause()'"
"""Heeds what ends a worker, as one does that has begun: its job does not."""
FILE = """
[templates.default]
python = "{program}"
[workers.{pool}]
minimum = {minimum}
"""


@pytest.fixture
def home(cluster: Cluster, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where workers are told of servers that nobody asks: their program is another."""
    let_others_pass(tmp_path)
    settings.ROLLYARD_HOME = tmp_path
    monkeypatch.setenv("DATABASE_URL", "postgresql://us@db.example/rollyard?sslmode=verify-full")
    monkeypatch.setenv("REDIS_URL", "rediss://redis.example")
    yield tmp_path
    workers.stop(mark_of_workers())
    until(lambda: not workers.listed(mark_of_workers()), within_s=30, what="the end of what a test left")


def write(home: Path, program: str, minimum: int, pool: str = "players", more: str = "") -> None:
    file = home / "program"
    file.write_text(f"#!/bin/sh\nexec {program}\n")
    file.chmod(0o755)
    (home / "cluster.toml").write_text(FILE.format(program=file, minimum=minimum, pool=pool) + more)


def running() -> list[str]:
    return sorted(job.number for job in workers.listed(mark_of_workers()).values() if job.state == "RUNNING")


def test_a_worker_that_is_lost_is_replaced_and_one_too_many_is_drained(home: Path, cluster: Cluster) -> None:
    write(home, WORKER, minimum=2)
    pools = WorkerPools()
    pools.keep()
    two = until(lambda: len(found := running()) == 2 and found, within_s=30, what="two workers")
    pools.keep()
    assert len(workers.listed(mark_of_workers())) == 2

    cluster.ask("scancel", two[0])
    until(lambda: len(workers.listed(mark_of_workers())) == 1, within_s=30, what="the end of one")
    pools.keep()
    later = until(lambda: len(found := running()) == 2 and found, within_s=30, what="another in its place")
    assert two[1] in later

    def are_running(*numbers: str) -> bool:
        pools.keep()
        return running() == list(numbers)

    write(home, WORKER, minimum=1)
    until(lambda: are_running(two[1]), within_s=30, what="the end of the younger")
    assert are_running(two[1])
    write(home, WORKER, minimum=0)
    until(are_running, within_s=30, what="the end of all")


def test_before_the_time_of_a_worker_is_too_short_for_a_group_another_has_come(
    home: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pools, "work", lambda: Work(is_there=True, is_left=False, takes_s=20 * 60))
    write(home, WORKER, minimum=1, pool="timed", more="hours = 1")
    pools = WorkerPools()

    def seen(count: int) -> list[str]:
        pools.keep()
        found = running()
        return found if len(found) == count else []

    [old] = until(lambda: seen(1), within_s=30, what="a worker")
    [row] = until(lambda: seen(1) and WorkerJob.objects.filter(state="running"), within_s=30, what="its row")
    assert row.left_s is not None
    assert 3500 < row.left_s <= 3600
    cluster.ask("scontrol", "update", f"JobId={old}", "TimeLimit=21")
    both = until(lambda: seen(2), within_s=30, what="another beside it")
    assert old in both
    cluster.ask("scontrol", "update", f"JobId={old}", "TimeLimit=20")
    until(lambda: seen(1) and old not in seen(1), within_s=30, what="the end of the one that begins nothing more")

    write(home, WORKER, minimum=1, pool="timed", more="hours = 0.35")
    [new] = running()
    cluster.ask("scontrol", "update", f"JobId={new}", "TimeLimit=21")

    def complaint() -> str:
        pools.keep()
        return KeptPool.objects.get().complaint

    told = until(complaint, within_s=30, what="that this was so with every one")
    assert told.startswith("its workers have 0.35 hours, and a group may take 0.33 (the timeout_s of its")
    assert running() == [new], "one that plays little is better than one for ever beginning"
    write(home, WORKER, minimum=0, pool="timed")
    until(lambda: pools.keep() or not workers.listed(mark_of_workers()), within_s=30, what="the end of all")


def test_workers_that_cannot_begin_are_not_started_for_ever(home: Path, cluster: Cluster) -> None:
    write(home, "ls /nowhere", minimum=1, pool="failing")
    logs = home / "logs" / "workers"
    logs.mkdir(parents=True)
    for name, age_s in (("recent", 86400), ("old", 8 * 86400)):
        (logs / f"worker-{name}.txt").touch()
        os.utime(logs / f"worker-{name}.txt", (time.time() - age_s,) * 2)
    pools, before = WorkerPools(), set(workers.remembered(mark_of_workers()))

    def have_failed() -> bool:
        pools.keep()
        jobs = workers.remembered(mark_of_workers())
        failed = [token for token, job in jobs.items() if job.state == "FAILED" and token not in before]
        return len(failed) >= MAX_FAILED

    until(have_failed, within_s=60, what="so many that failed")
    # One more may have been started by the look that saw one fewer fail.
    until(lambda: not workers.listed(mark_of_workers()), within_s=60, what="none is left")
    for _ in range(3):
        pools.keep()
    assert not workers.listed(mark_of_workers())
    last_words = [path.read_text() for path in logs.glob("worker-failing-*.txt")]
    assert MAX_FAILED <= len(last_words) <= MAX_FAILED + 1
    assert all("/nowhere" in words for words in last_words)
    assert {path.name for path in logs.glob("worker-[or]*")} == {"worker-recent.txt"}, "logs are kept for a week"
