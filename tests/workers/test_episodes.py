"""Drivers with real rows: whatever the policy or the lease does, a group is settled once or played again."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F

from environments.library.reverse_text import ReverseText
from rollouts.models import (
    DriverLoad,
    Evaluation,
    Lease,
    MetricPoint,
    PolicyVersion,
    Purpose,
    Replica,
    Rollout,
    Run,
    ScoredGroup,
)
from rollouts.services.groups import leases
from rollouts.services.runs import life, policies, replicas
from rollouts.states import GroupState, RunState
from tests.factories import words
from tests.workers.making import expire, make_run, make_server, make_started_run
from tests.workers.stub_server import StubServer, stub_server
from tests.workers.waiting import eventually
from workers import tasks
from workers.database import with_connection
from workers.episodes import Driver
from workers.fleet import replica_pool
from workers.fleet.replica_pool import ReplicaPool
from workers.launchers import confinement

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]  # drivers live for seconds


@pytest.fixture
def stub() -> Iterator[StubServer]:
    with stub_server() as server:
        yield server


@contextmanager
def driving(run: Run, **options: Any) -> Iterator[threading.Thread]:
    """A driver in a thread, told to stop at the end."""
    stop = threading.Event()
    driver = Driver(run, stopping=stop.is_set, **options)
    thread = threading.Thread(target=lambda: asyncio.run(driver.drive()))
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


def count(run: Run, state: GroupState) -> int:
    return ScoredGroup.objects.filter(run=run, state=state).count()


def ready(run: Run, groups: int) -> Callable[[], bool]:
    return lambda: count(run, GroupState.READY) >= groups


def first_failed(run: Run) -> ScoredGroup:
    eventually(lambda: count(run, GroupState.FAILED) > 0)
    return ScoredGroup.objects.filter(run=run, state=GroupState.FAILED)[0]


def test_driver_fills_the_run_to_its_capacity_and_names_versions_and_replica(stub: StubServer) -> None:
    run = make_started_run()
    server = make_server(run, stub.url)
    Replica.objects.filter(pk=server.pk).update(answered_at=F("answered_at") - timedelta(seconds=10))
    with driving(run):
        eventually(ready(run, 4))
        # What it answered to episodes spares it a probe.
        eventually(lambda: Replica.objects.filter(pk=server.pk, answered_at__gt=server.answered_at).exists())
        eventually(lambda: MetricPoint.objects.filter(run=run, key="time/wait_for_policy", value__gt=0).exists())
        eventually(lambda: MetricPoint.objects.filter(run=run, key="generation/rollouts", value=8.0).exists())
    # One batch for the live version and one ahead: two groups each, and no more.
    assert ScoredGroup.objects.filter(run=run).count() == 4
    assert set(ScoredGroup.objects.values_list("environment_version", flat=True)) == {ReverseText.version}
    for rollout in Rollout.objects.filter(group__run=run):
        assert rollout.replica == server.name
        assert (rollout.dispatch_policy_version, rollout.first_policy_version, rollout.last_policy_version) == (0, 0, 0)
    assert MetricPoint.objects.get(run=run, key="generation/tokens", step=0).value == 16.0


def test_driver_goes_on_when_a_newer_version_is_live(stub: StubServer) -> None:
    run = make_started_run()
    make_server(run, stub.url)
    with driving(run):
        eventually(ready(run, 4))
        version = PolicyVersion.objects.create(run=run, version=1, path="somewhere")
        stub.label = "1"
        policies.published(version)
        eventually(ready(run, 6))
    newest = ScoredGroup.objects.filter(run=run).latest("id")
    # The replica's row still says 0, but what was live at the claim is the least that was served.
    assert (newest.min_policy_version, newest.max_policy_version) == (1, 1)


def test_server_errors_cost_time_and_no_group(stub: StubServer) -> None:
    run = make_started_run()
    make_server(run, stub.url)
    stub.mode = "error"
    with driving(run):
        eventually(lambda: count(run, GroupState.PLAYING) == 2)
        stub.mode = "ok"
        eventually(ready(run, 4))
    assert count(run, GroupState.FAILED) == 0


def test_hung_server_loses_its_groups_to_another(stub: StubServer) -> None:
    run = make_started_run()
    make_server(run, stub.url)
    stub.mode = "hang"
    with stub_server() as other, driving(run, pool=ReplicaPool(run, request_timeout_s=0.5)):
        second = make_server(run, other.url, slot=1)
        eventually(ready(run, 4))
    assert set(Rollout.objects.filter(group__run=run).values_list("replica", flat=True)) == {second.name}


def test_replica_that_is_lost_and_replaced_costs_no_group(stub: StubServer) -> None:
    run = make_started_run()
    first = make_server(run, stub.url)
    stub.mode = "hang"
    with driving(run):
        # Its machine is gone without a word: these would wait as long as a request may.
        eventually(lambda: stub.asked >= 2)
        replicas.lost(first, exit_code=None, reason=words("its node failed"))
        with stub_server() as other:
            make_server(run, other.url)
            eventually(ready(run, 4))
    assert count(run, GroupState.FAILED) == 0


@pytest.mark.parametrize(("timeout_s", "longest_s"), [(60.0, 600.0), (1800.0, 1800.0)])
def test_reply_may_take_as_long_as_its_group(timeout_s: float, longest_s: float) -> None:
    run = make_run(environments=[{"name": "reverse_text", "timeout_s": timeout_s}])
    assert replica_pool.longest_request_s(run) == longest_s


def test_long_wait_for_an_answer_leaves_the_patience_to_ask_another_server(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_pool, "PATIENCE_S", 0.8)
    run = make_started_run()
    make_server(run, stub.url)
    stub.mode = "hang"
    with stub_server() as other, driving(run, pool=ReplicaPool(run, request_timeout_s=1.0)):
        eventually(lambda: stub.asked >= 2)
        make_server(run, other.url, slot=1)
        eventually(ready(run, 4))
    assert count(run, GroupState.FAILED) == 0


def test_policy_that_never_answers_fails_the_group_with_its_words(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_pool, "PATIENCE_S", 0.3)
    run = make_started_run()
    make_server(run, stub.url)
    stub.mode = "error"
    failed = ScoredGroup.objects.filter(run=run, state=GroupState.FAILED)
    with driving(run):
        # Others may fail first, for nobody asks a replica again at once that has just failed.
        group = eventually(failed.filter(reason_params__error__icontains="told to fail").first)
    assert group is not None
    assert "policy" in group.state_reason


def test_nan_logprobs_are_never_stored(stub: StubServer) -> None:
    run = make_started_run()
    make_server(run, stub.url)
    stub.mode = "nan"
    with driving(run):
        group = first_failed(run)
    assert "InvalidAnswer" in group.state_reason
    assert not Rollout.objects.filter(group__run=run, token_count__gt=3).exists()


def test_environment_that_cannot_be_loaded_is_data_and_slows_the_driver(stub: StubServer) -> None:
    run = make_started_run(environments=[{"name": "no_such_environment"}])
    make_server(run, stub.url)
    with driving(run):
        group = first_failed(run)
        assert "no_such_environment" in group.state_reason
        failed = eventually(lambda: count(run, GroupState.FAILED))
    assert failed < 50


def test_lease_that_was_taken_over_is_dropped_and_played_by_the_new_holder(stub: StubServer) -> None:
    run = make_started_run()
    make_server(run, stub.url)
    stub.mode = "hang"
    with driving(run):
        eventually(lambda: count(run, GroupState.PLAYING) == 2)
        with transaction.atomic():  # a renewal in between would keep them
            expire(run)
            claims = leases.claim(run, holder="another", limit=2, lease_s=60).claims
        assert len(claims) == 2
        stub.mode = "ok"
        # The driver has noticed when it claims the two that are left.
        eventually(ready(run, 2))
    assert Lease.objects.filter(run=run, holder="another").count() == 2
    assert ScoredGroup.objects.filter(run=run, state=GroupState.PLAYING, lease_count=2).count() == 2


def test_driver_that_is_told_to_stop_gives_its_leases_back(stub: StubServer) -> None:
    run = make_started_run()
    make_server(run, stub.url)
    stub.mode = "hang"
    with driving(run):
        eventually(lambda: count(run, GroupState.PLAYING) == 2)
    # No waiting for the term: another driver takes them at once.
    assert len(leases.claim(run, holder="another", limit=2, lease_s=60).claims) == 2


def test_stop_of_the_run_ends_the_driver(stub: StubServer) -> None:
    run = make_started_run()
    make_server(run, stub.url)
    stub.mode = "hang"
    with driving(run) as thread:
        eventually(lambda: count(run, GroupState.PLAYING) == 2)
        life.request_stop(run, actor="user:admin")
        thread.join(20)
        assert not thread.is_alive()


def test_driver_whose_time_is_up_hands_over_and_finishes_what_it_plays(stub: StubServer) -> None:
    run = make_started_run()
    make_server(run, stub.url)
    stub.mode = "hang"
    handed_over = threading.Event()
    with driving(run, budget_s=1.0, handed_over=handed_over.set) as thread:
        eventually(lambda: count(run, GroupState.PLAYING) == 2)
        assert handed_over.wait(20)
        eventually(DriverLoad.objects.filter(run=run, is_draining=True).exists)
        stub.mode = "ok"
        thread.join(20)
        assert not thread.is_alive()
    assert count(run, GroupState.READY) == 2
    assert not Lease.objects.filter(run=run).exists()


def test_killed_connection_to_the_database_costs_no_group(stub: StubServer) -> None:
    run = make_started_run()
    make_server(run, stub.url)
    stub.mode = "hang"
    with driving(run):
        eventually(lambda: count(run, GroupState.PLAYING) == 2)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()"
            )
        stub.mode = "ok"
        eventually(ready(run, 4))
    assert count(run, GroupState.FAILED) == 0


def test_doubled_message_starts_one_driver(stub: StubServer) -> None:
    run = make_started_run()
    make_server(run, stub.url)
    stub.mode = "hang"
    first = threading.Thread(target=tasks.drive, args=(run.pk,))
    first.start()
    try:
        eventually(lambda: count(run, GroupState.PLAYING) == 2)
        second = threading.Thread(target=with_connection, args=(tasks.drive, run.pk))
        second.start()
        second.join(10)
        assert not second.is_alive()
        assert first.is_alive()
    finally:
        life.request_stop(run, actor="user:admin")
        first.join(20)
    assert not first.is_alive()


def test_message_for_a_run_that_is_over_or_unknown_does_nothing() -> None:
    run = make_run()
    life.end(life.request_stop(run, actor="user:admin"), to=RunState.STOPPED)
    for run_id in (run.pk, 10**9):
        with_connection(tasks.drive, run_id)


def test_polling_drives_a_run_that_nobody_rang_for(stub: StubServer) -> None:
    run = make_started_run()
    make_server(run, stub.url)
    stop = threading.Event()
    thread = threading.Thread(target=tasks.poll_runs, args=(0.1,), kwargs={"stopping": stop.is_set})
    thread.start()
    try:
        eventually(ready(run, 4))
    finally:
        stop.set()
        life.request_stop(run, actor="user:admin")
        thread.join(20)
        eventually(lambda: not any(each.name == f"drive-{run.pk}" for each in threading.enumerate()))


def test_evaluated_problems_take_as_much_of_a_driver_as_they_have_rollouts(stub: StubServer) -> None:
    run = make_started_run(evaluation={"problems": 50, "rollouts_per_problem": 1}, workers__concurrency=2)
    make_server(run, stub.url)
    stub.mode = "hang"
    with driving(run):
        # Two groups of two rollouts, or four problems that are evaluated: half of each.
        eventually(lambda: count(run, GroupState.PLAYING) == 3)
        assert ScoredGroup.objects.filter(run=run, purpose=Purpose.TRAIN).count() == 1
        stub.mode = "ok"
        eventually(lambda: count(run, GroupState.EVALUATED) == 50)
        eventually(ready(run, 2))


@pytest.mark.parametrize("process", ["inline", "isolated"])
def test_an_environment_that_nobody_has_counted_is_counted_by_whoever_plays_it(stub: StubServer, process: str) -> None:
    own = {"name": "reverse_text", "process": process, "args": {"eval_count": 3, "train_count": 40}, "pools": {}}
    if process == "isolated" and confinement.complaint():
        pytest.skip(f"NO SANDBOX: {confinement.complaint()}")
    run = make_started_run(environments=[own], evaluation={"problems": 20, "rollouts_per_problem": 1})
    make_server(run, stub.url)
    with driving(run):
        eventually(ready(run, 1))
    environment, evaluation = run.environments.get(), Evaluation.objects.get(run=run)
    assert (environment.problem_count, environment.problems, evaluation.problems) == (3, 40, 3)
    played = ScoredGroup.objects.filter(run=run, purpose=Purpose.EVAL, state=GroupState.EVALUATED)
    assert set(played.values_list("problem_index", flat=True)) <= {0, 1, 2}
