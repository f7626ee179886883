"""A run whose jobs hold their nodes for nothing is stopped where it says so, and nowhere else."""

from datetime import timedelta

import pytest
from django.utils import timezone

from rollouts.models import Replica, ReplicaLoad, Run
from rollouts.states import RUN_GENERATING, RunState
from tests.factories import make_replica
from tests.workers.making import make_started_run
from workers import convergence
from workers.fleet import lifecycle

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def ended(monkeypatch: pytest.MonkeyPatch) -> list[Replica]:
    """What was ended, in place of jobs."""
    found: list[Replica] = []
    monkeypatch.setattr(lifecycle, "end", lambda replicas, **_: found.extend(replicas))
    monkeypatch.setattr(convergence.training, "tend", lambda run: None)
    monkeypatch.setattr(convergence.Servers, "tend", lambda self, run: None)
    monkeypatch.setattr(convergence.publishing, "publish", lambda run: None)
    return found


def converged(idle_s: float, **overrides: object) -> tuple[Run, Replica]:
    run = make_started_run(launcher__type="slurm", **overrides)
    now = timezone.now()
    server = make_replica(run, launcher="slurm", begun_at=now)
    ReplicaLoad.objects.create(replica=server, reported_at=now, idle_since=now - timedelta(seconds=idle_s))
    convergence.Convergence().converge(run.pk)
    run.refresh_from_db()
    return run, server


def test_its_nodes_are_given_back_and_it_says_why(ended: list[Replica]) -> None:
    run, server = converged(301, launcher__idle_limit_s=300)
    assert run.state == RunState.STOPPED
    assert "its jobs (1) had nothing to do for 301 s, and launcher.idle_limit_s is 300" in str(run.reason)
    assert ended == [server]


@pytest.mark.parametrize(("idle_s", "limit_s"), [(299, 300), (10_000, 0)])
def test_before_that_and_without_a_limit_it_goes_on(ended: list[Replica], idle_s: float, limit_s: float) -> None:
    run, _ = converged(idle_s, launcher__idle_limit_s=limit_s)
    assert run.state in RUN_GENERATING
    assert ended == []
