"""What replicas are busy with: idle is what a server is that nobody but a probe asks."""

from datetime import timedelta

import pytest
from django.db.models import F
from django.utils import timezone

from rollouts.models import Replica, ReplicaLoad
from rollouts.services.runs import replica_loads
from tests.factories import make_replica, make_run

pytestmark = pytest.mark.django_db


@pytest.fixture
def server() -> Replica:
    return make_replica(make_run())


def report(server: Replica, *, tokens: int, running: int = 0, waiting: int = 0, after_s: float = 10) -> ReplicaLoad:
    """A report so long after the last."""
    passed = timedelta(seconds=after_s)
    ReplicaLoad.objects.filter(replica=server).update(
        reported_at=F("reported_at") - passed, idle_since=F("idle_since") - passed
    )
    replica_loads.report(server, running=running, waiting=waiting, cache_share=0.25, tokens=tokens)
    return ReplicaLoad.objects.get(replica=server)


def test_a_server_at_work_says_how_fast_it_is(server: Replica) -> None:
    first = report(server, tokens=100, running=3, waiting=2)
    assert (first.running, first.waiting, first.cache_share, first.tokens) == (3, 2, 0.25, 100)
    assert (first.tokens_per_s, first.idle_since, first.idle_s) == (None, None, 0.0)
    then = report(server, tokens=600, running=1)
    assert then.tokens_per_s == pytest.approx(50, rel=0.05)


def test_a_server_that_only_probes_ask_is_idle_since_it_last_worked(server: Replica) -> None:
    report(server, tokens=100, running=1)
    first = report(server, tokens=180)
    assert first.idle_since == first.reported_at, "it was at work a moment ago"
    then = report(server, tokens=181)
    assert then.idle_since is not None
    assert then.idle_since < first.idle_since
    last = report(server, tokens=182)
    assert last.idle_s == pytest.approx(20, rel=0.05)
    at_work = report(server, tokens=183, running=1)
    assert (at_work.idle_since, at_work.idle_s) == (None, last.idle_s)


@pytest.mark.parametrize("tokens", [182, 400, 3], ids=["two tokens", "many", "started anew"])
def test_what_was_generated_between_two_looks_ends_being_idle(server: Replica, tokens: int) -> None:
    for _ in range(2):
        report(server, tokens=180)
    before = report(server, tokens=180)
    assert before.idle_s == pytest.approx(10, rel=0.05)
    now = report(server, tokens=tokens)
    assert (now.idle_since, now.idle_s) == (now.reported_at, before.idle_s)


def test_a_server_that_has_done_nothing_is_idle_from_the_first_report_on(server: Replica) -> None:
    assert report(server, tokens=1).idle_since is not None
    assert report(make_replica(server.run, slot=1), tokens=1, waiting=1).idle_since is None


def test_a_heartbeat_is_noted_beside_a_report_and_not_at_every_look(server: Replica) -> None:
    replica_loads.heard(server, 1.0)
    first = ReplicaLoad.objects.get(replica=server)
    assert first.heartbeat_at is not None
    assert 0 < (timezone.now() - first.heartbeat_at).total_seconds() - 1 < 5
    assert first.reported_at is None
    replica_loads.heard(server, 0.0)
    assert ReplicaLoad.objects.get(replica=server).heartbeat_at == first.heartbeat_at
    ReplicaLoad.objects.filter(replica=server).update(heartbeat_at=first.heartbeat_at - timedelta(seconds=9))
    replica_loads.heard(server, 0.0)
    now = report(server, tokens=5, running=1)
    assert now.heartbeat_at is not None
    assert now.heartbeat_at > first.heartbeat_at
    assert (now.tokens_per_s, now.running) == (None, 1)
