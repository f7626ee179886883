"""A run whose jobs hold their nodes for nothing is stopped where it says so, and nowhere else."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from rollouts.models import PolicyVersion, Replica, ReplicaKind, ReplicaLoad, Run
from rollouts.states import RUN_GENERATING, RunState
from tests import store
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


def idle(idle_s: float, *, published_s: float = 99_999, **overrides: object) -> tuple[Run, Replica]:
    """A run and its server, which has had nothing to do for so long. `published_s`: since its version went live."""
    run = make_started_run(launcher__type="slurm", **overrides)
    now = timezone.now()
    PolicyVersion.objects.filter(run=run).update(published_at=now - timedelta(seconds=published_s))
    server = make_replica(run, launcher="slurm", begun_at=now)
    ReplicaLoad.objects.create(replica=server, reported_at=now, idle_since=now - timedelta(seconds=idle_s))
    return run, server


def converged(idle_s: float, **options: Any) -> tuple[Run, Replica]:
    run, server = idle(idle_s, **options)
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


def test_a_run_that_took_long_to_make_its_next_version_is_not_idle(ended: list[Replica]) -> None:
    run, _ = converged(10_000, published_s=10, launcher__idle_limit_s=300)
    assert run.state in RUN_GENERATING
    assert ended == []


def test_a_trainer_that_loads_or_saves_waits_for_no_batch_until_it_asks_for_one(ended: list[Replica]) -> None:
    run, _ = idle(10_000, launcher__idle_limit_s=300)
    trainer = make_replica(run, kind=ReplicaKind.TRAINER, launcher="slurm", begun_at=timezone.now())
    long_ago = timezone.now() - timedelta(seconds=1000)
    with store.beyond_rights():
        Replica.objects.filter(pk=trainer.pk).update(state_at=long_ago)
    passes = convergence.Convergence()
    for called_at in (long_ago, timezone.now()):
        Replica.objects.filter(pk=trainer.pk).update(answered_at=called_at)
        passes.converge(run.pk)
        run.refresh_from_db()
        assert run.state in RUN_GENERATING
    assert ended == []
