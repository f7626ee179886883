"""What of somebody's projects runs where: theirs alone, and how much of a machine others have."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.utils import timezone

from rollouts.models import (
    Batch,
    DriverLoad,
    KeptPool,
    Lease,
    Placement,
    Replica,
    ReplicaKind,
    ReplicaLoad,
    Role,
    Run,
    WorkerJob,
)
from rollouts.selectors import machines
from rollouts.selectors.machines import DriverLine, Fleet, ReplicaLine
from rollouts.states import BatchState, GroupState, ReplicaState
from tests import store
from tests.factories import make_batch, make_group, make_policy_version, make_project, make_replica, make_run, make_user
from workers.slurm import queue

pytestmark = pytest.mark.django_db

IDLE_S = 600.0


@pytest.fixture
def user() -> User:
    return make_user("ada", role=Role.VIEWER)


@pytest.fixture
def theirs() -> Run:
    return make_run(project=make_project("elsewhere"))


def fleet(user: User | AnonymousUser) -> Fleet:
    return machines.fleet(user, idle_s=IDLE_S)


def ago(seconds: float) -> Any:
    return timezone.now() - timedelta(seconds=seconds)


def only(user: User) -> ReplicaLine:
    (line,) = fleet(user).replicas
    return line


def driver(run: Run, holder: str, *, silent_s: float = 0, **columns: Any) -> None:
    DriverLoad.objects.create(run=run, holder=holder, reported_at=ago(silent_s), **columns)


def lease(run: Run, holder: str) -> None:
    now = timezone.now()
    group = make_group(run, state=GroupState.PLAYING)
    Lease.objects.create(
        group=group, run=run, holder=holder, claimed_at=now, expires_at=now + timedelta(seconds=60), policy_version=0
    )


def test_replicas_of_ones_projects_are_listed_while_they_are_alive(user: User, theirs: Run) -> None:
    run = make_run()
    ours = [make_replica(run, slot=slot, state=state) for slot, state in enumerate(["starting", "ready", "suspect"])]
    make_replica(run, slot=3, state=ReplicaState.LOST)
    make_replica(theirs)
    assert [line.replica for line in fleet(user).replicas] == ours
    assert len(fleet(make_user("root", role=None)).replicas) == 0
    User.objects.filter(username="root").update(is_superuser=True)
    assert len(fleet(User.objects.get(username="root")).replicas) == 4
    assert fleet(AnonymousUser()) == Fleet([], [], [], [], [])


@pytest.mark.parametrize(("idle_s", "is_idle"), [(599, False), (601, True)])
def test_a_server_is_an_alarm_when_it_is_idle_for_longer_than_it_may(user: User, idle_s: float, is_idle: bool) -> None:
    replica = make_replica(make_run())
    ReplicaLoad.objects.create(replica=replica, reported_at=timezone.now(), idle_since=ago(idle_s))
    line = only(user)
    assert (line.is_idle, fleet(user).alarms) == (is_idle, int(is_idle))
    Replica.objects.filter(pk=replica.pk).update(state=ReplicaState.SUSPECT)
    assert only(user).idle_since is None, "it is idle, for it does not answer"


def test_a_server_that_says_nothing_is_not_called_idle(user: User) -> None:
    make_replica(make_run())
    line = only(user)
    assert (line.load, line.idle_since, line.is_idle, line.is_silent) == (None, None, False, False)


def test_a_trainer_waits_for_a_batch_since_its_last_step(user: User) -> None:
    run = make_run(next_step=1)
    trainer = make_replica(run, kind=ReplicaKind.TRAINER)
    with store.beyond_rights():
        Replica.objects.filter(pk=trainer.pk).update(state_at=ago(5000))
    assert only(user).is_idle, "it registered long ago, and never had a batch"
    batch = make_batch(run, 0, [make_group(run)])
    assert not only(user).is_idle
    stepped_at = ago(700)
    Batch.objects.filter(pk=batch.pk).update(trained_at=stepped_at)
    assert (only(user).is_idle, only(user).idle_since) == (True, stepped_at)
    Replica.objects.filter(pk=trainer.pk).update(answered_at=ago(91))
    assert only(user).idle_since is None, "it saves a checkpoint: who waits goes on asking"
    Replica.objects.filter(pk=trainer.pk).update(answered_at=ago(40))
    make_batch(run, 1, [make_group(run)], state=BatchState.DELIVERED)
    assert only(user).idle_since is None, "it computes"


@pytest.mark.parametrize("columns", [{"preset": "reverse-text-sft"}, {"trainer_finished_at": timezone.now()}])
def test_trainers_that_want_no_batch_are_not_idle(user: User, columns: dict[str, Any]) -> None:
    trainer = make_replica(make_run(**columns), kind=ReplicaKind.TRAINER)
    with store.beyond_rights():
        Replica.objects.filter(pk=trainer.pk).update(state_at=ago(5000))
    assert not only(user).is_idle


def test_a_run_is_idle_since_the_last_of_its_jobs_is() -> None:
    run, now = make_run(), timezone.now()
    assert machines.idle_since(run) is None
    servers = [make_replica(run, slot=slot, launcher="slurm", begun_at=now) for slot in range(2)]
    make_replica(run, kind=ReplicaKind.TRAINER, launcher="slurm", state="starting")  # it waits for a node
    times = [ago(700), ago(300)]
    for server, since in zip(servers, times, strict=True):
        ReplicaLoad.objects.create(replica=server, reported_at=now, idle_since=since)
    assert machines.idle_since(run) == (2, times[1])
    published = make_policy_version(run, 0)
    assert machines.idle_since(run) == (2, published.published_at), "there is something to play since"
    ReplicaLoad.objects.filter(replica=servers[0]).update(idle_since=None)
    assert machines.idle_since(run) is None, "one of them is at work"


def test_a_replica_whose_heart_does_not_beat_is_an_alarm(user: User) -> None:
    replica = make_replica(make_run())
    ReplicaLoad.objects.create(replica=replica, heartbeat_at=ago(5))
    assert not only(user).is_silent
    ReplicaLoad.objects.update(heartbeat_at=ago(31))
    assert only(user).is_silent


def test_a_job_has_a_name_an_end_and_what_it_waits_for(user: User) -> None:
    job = make_replica(make_run(), launcher="slurm", state="starting", state_reason="job 7 is queued", answered_at=None)
    line = only(user)
    assert line.replica.job_name == queue.name_of(str(job.token))
    assert (line.left_s, line.replica.state_reason) == (None, "job 7 is queued")
    Replica.objects.filter(pk=job.pk).update(due_at=timezone.now() + timedelta(hours=1), host="n7")
    left_s = only(user).left_s
    assert left_s is not None
    assert 3590 < left_s <= 3600
    Replica.objects.filter(pk=job.pk).update(due_at=ago(5))
    assert only(user).left_s == 0.0
    assert make_replica(make_run()).job_name == ""


def lines(user: User) -> dict[tuple[str, str], DriverLine]:
    return {(line.run.key, line.holder): line for line in fleet(user).drivers}


def test_drivers_say_what_they_do_and_hold_leases(user: User, theirs: Run) -> None:
    run = make_run()
    driver(run, "gpu-box:1", sessions=9, asking=5, scoring=1, queued=2, is_draining=True)
    driver(run, "gpu-box:2", silent_s=16)
    driver(theirs, "gpu-box:1")
    driver(make_run(state="finished"), "gpu-box:3", silent_s=9999)
    for holder in ("gpu-box:1", "gpu-box:1", "outside"):
        lease(run, holder)
    lease(theirs, "gpu-box:1")
    found = lines(user)
    assert {holder: (line.leases, line.is_silent) for (_, holder), line in found.items()} == {
        "gpu-box:1": (2, False),
        "gpu-box:2": (0, True),
        "outside": (1, False),
    }
    at_work = found[run.key, "gpu-box:1"]
    assert at_work.load is not None
    assert (at_work.load.sessions, at_work.load.is_draining) == (9, True)
    assert found[run.key, "outside"].load is None
    assert found[run.key, "outside"].expires_at is not None
    assert fleet(user).alarms == 1
    (machine,) = fleet(user).machines
    assert (machine.host, machine.drivers) == ("gpu-box", 2), "whoever is outside may call itself anything"


def test_machines_say_whose_gpus_are_whose_and_of_others_only_that_they_have_them(user: User, theirs: Run) -> None:
    run, second = make_run(), make_run()
    for holder, host, gpu in [(run, "a", "0"), (run, "a", "1"), (theirs, "a", "2"), (second, "b", "4")]:
        Placement.objects.create(run=holder, host=host, kind="gpu", unit=gpu)
    Placement.objects.create(run=run, host="a", kind="gpu", unit="3", released_at=timezone.now())
    Placement.objects.create(run=theirs, host="only-theirs", kind="gpu", unit="5")
    make_replica(run, host="a", gpus=1)
    make_replica(theirs, host="a")
    make_replica(theirs, slot=1, host="a", state="lost")
    make_replica(second, host="n1", launcher="slurm", gpus=4, begun_at=timezone.now())
    make_replica(second, slot=1, launcher="slurm", gpus=4)
    found = fleet(user)
    assert [(each.host, each.gpus, len(each.replicas), each.others) for each in found.machines] == [
        ("a", [("0", run), ("1", run), ("2", None)], 1, 1),
        ("b", [("4", second)], 0, 0),
        ("n1", [], 1, 0),
    ]
    assert [(each.run, each.number, each.hosts, each.replicas) for each in found.gpus] == [
        (second, 5, ["b", "n1"], 2),
        (run, 2, ["a"], 1),
    ]


def test_workers_that_are_jobs_are_told_by_pool_with_those_of_none_and_of_pools_that_are_gone(user: User) -> None:
    KeptPool.objects.create(name="players", minimum=1, maximum=4)
    KeptPool.objects.create(name="resting", minimum=0, maximum=0, complaint="nobody knows the template")
    jobs = [("players", "running"), ("players", "pending"), ("", "running"), ("former", "failed")]
    for number, (pool, state) in enumerate(jobs):
        WorkerJob.objects.create(token=f"worker-{number}", pool=pool, number=str(number), state=state)
    found = fleet(user)
    told = {line.pool and line.pool.name: ([job.number for job in line.jobs], line.running) for line in found.pools}
    assert told == {"players": (["0", "1"], 1), "resting": ([], 0), None: (["2"], 1), "former": (["3"], 0)}
    assert found.alarms == 1
