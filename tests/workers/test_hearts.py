"""A replica is silent while somebody sees that its heart does not beat, however old the last beat is."""

import itertools
import json
import os
import time
from pathlib import Path

import pytest

from rollouts.models import Replica
from tests.factories import make_replica, make_run
from workers.fleet import lifecycle
from workers.launchers import local
from workers.launchers.base import End, Observation
from workers.slurm.queue import Job, Queue, SlurmAway

pytestmark = pytest.mark.django_db
LONG_AGO_S = 7200.0


class Clock:
    """The time that passes between looks."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


@pytest.fixture
def queued(monkeypatch: pytest.MonkeyPatch) -> dict[str, Job]:
    """What SLURM says."""
    queued: dict[str, Job] = {}
    monkeypatch.setattr(Queue, "jobs", lambda _, *, anew=False: queued)
    return queued


@pytest.fixture(params=["slurm", "local"])
def replica(
    request: pytest.FixtureRequest, queued: dict[str, Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Replica:
    """One at work, whose heart last beat long ago."""
    row = make_replica(make_run(), launcher=request.param, directory=str(tmp_path))
    queued[str(row.token)] = Job("7", "RUNNING", "None", "n1")
    monkeypatch.setattr(local, "_shepherd", lambda _: (1, 1))
    for name in ("agent.json", "heartbeat"):
        (tmp_path / name).write_text(json.dumps({"token": str(row.token), "base_url": ""}))
        os.utime(tmp_path / name, (time.time() - LONG_AGO_S,) * 2)
    return row


def looks(replica: Replica, clock: Clock, *, for_s: float, every_s: float = 2.0) -> Observation:
    for _ in range(round(for_s / every_s)):
        clock.now += every_s
        lifecycle.observe(replica)
    return lifecycle.observe(replica)


def test_a_heart_whose_last_beat_is_old_is_silent_once_it_was_seen_not_to_beat(replica: Replica, clock: Clock) -> None:
    seen = lifecycle.observe(replica)
    assert (seen.alive, round(seen.heartbeat_age_s or 0)) == (True, LONG_AGO_S)
    assert looks(replica, clock, for_s=lifecycle.HEARTBEAT_DEADLINE_S - 2).alive
    (Path(replica.directory) / "heartbeat").touch()
    assert looks(replica, clock, for_s=lifecycle.HEARTBEAT_DEADLINE_S).alive, "it beat meanwhile"
    seen = looks(replica, clock, for_s=4)
    assert (seen.alive, seen.end) == (False, End.SILENT)
    assert str(lifecycle.reason_of(seen)).startswith("no heartbeat for ")


def test_the_time_in_which_nobody_looked_makes_no_heart_silent(replica: Replica, clock: Clock) -> None:
    lifecycle.observe(replica)
    assert looks(replica, clock, for_s=LONG_AGO_S, every_s=LONG_AGO_S).alive, "the look itself hung, say"
    assert looks(replica, clock, for_s=300, every_s=15).end is End.SILENT, "whoever looks seldom sees it too"


@pytest.mark.parametrize("replica", ["slurm"], indirect=True)
def test_a_heart_is_found_silent_although_slurm_does_not_answer_now_and_then(
    replica: Replica, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, asked = Queue.jobs, itertools.count()

    def jobs(self: Queue, *, anew: bool = False) -> dict[str, Job]:
        if next(asked) % 20 == 19:
            raise SlurmAway("squeue did not answer within 15 s")
        return answers(self, anew=anew)

    monkeypatch.setattr(Queue, "jobs", jobs)
    assert looks(replica, clock, for_s=90).end is End.SILENT


@pytest.mark.parametrize("replica", ["slurm"], indirect=True)
def test_a_job_that_was_suspended_goes_on(replica: Replica, clock: Clock, queued: dict[str, Job]) -> None:
    (token, job), *_ = queued.items()
    for _ in range(2):
        assert looks(replica, clock, for_s=lifecycle.HEARTBEAT_DEADLINE_S - 2).alive
        queued[token] = job._replace(state="SUSPENDED")
        assert looks(replica, clock, for_s=LONG_AGO_S).alive
        queued[token] = job
    assert looks(replica, clock, for_s=lifecycle.HEARTBEAT_DEADLINE_S + 4).end is End.SILENT
