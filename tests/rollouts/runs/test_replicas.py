"""The record of processes: one alive per slot, and every end with its reason."""

import pytest
from django.db import IntegrityError, transaction

from rollouts.errors import StateConflict
from rollouts.models import Event, Replica, ReplicaKind, Run
from rollouts.reasons import Reason, ReasonCode
from rollouts.selectors import fleet
from rollouts.services.runs import replicas
from rollouts.states import ReplicaState
from tests.factories import words
from tests.rollouts import story

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    return story.launch()


def create(run: Run, slot: int = 0, kind: ReplicaKind = ReplicaKind.INFERENCE) -> Replica:
    return replicas.create(run, kind=kind, slot=slot, launcher="local")


def test_a_slot_is_taken_by_one_process_until_it_has_ended(run: Run) -> None:
    first = create(run)
    with pytest.raises(IntegrityError, match="replica_one_alive_per_slot"), transaction.atomic():
        create(run)
    replicas.lost(first, exit_code=-9, reason=words("killed"))
    second = create(run)
    assert (second.pk, second.token) != (first.pk, first.token)
    create(run, slot=1)
    create(run, kind=ReplicaKind.TRAINER)


@pytest.mark.django_db(transaction=True)
def test_of_two_processes_that_reserve_a_slot_one_wins() -> None:
    run = story.launch()
    results = story.together(lambda: create(run), lambda: create(run))
    assert sorted(type(each).__name__ for each in results) == ["IntegrityError", "Replica"]
    assert Replica.objects.count() == 1


def test_a_replica_lives_suspected_and_cleared_until_its_end(run: Run) -> None:
    replica = create(run)
    assert replica.directory == str(run.directory / "replicas" / replica.name)
    replicas.address(replica, base_url="http://127.0.0.1:8001")
    assert list(fleet.list_serving(run)) == []
    replicas.ready(replica, loaded_version=0)
    assert list(fleet.list_serving(run)) == [replica]
    replicas.answered(replica, loaded_version=3)
    assert replica.loaded_version == 3
    for count in (1, 2, 3):
        replicas.suspect(replica, reason=words(f"no answer {count}\x00"))
        assert (replica.state, replica.probe_failures) == (ReplicaState.SUSPECT, count)
    assert list(fleet.list_serving(run)) == []
    assert list(fleet.list_alive(run, ReplicaKind.INFERENCE)) == [replica]
    replicas.ready(replica, loaded_version=3)
    assert replica.probe_failures == 0
    replicas.stopping(replica, reason=words("over"))
    replicas.exited(replica, exit_code=0)
    assert replica.ended_at is not None
    log = Event.objects.filter(object_kind="replica").order_by("id")
    assert list(log.values_list("to_state", flat=True)) == [
        *("starting", "ready", "suspect", "ready", "stopping", "exited")
    ]


def test_a_replica_that_has_ended_stays_so(run: Run) -> None:
    replica = create(run)
    replicas.lost(replica, exit_code=None, reason=words("log ends with \x00\ud800"))
    assert replica.state_reason == "log ends with \ufffd\ufffd"
    for act in (
        lambda: replicas.ready(replica),
        lambda: replicas.stopping(replica, reason=words("x")),
        lambda: replicas.exited(replica, exit_code=0),
        lambda: replicas.lost(replica, exit_code=0, reason=words("again")),
    ):
        with pytest.raises(StateConflict, match="is lost"):
            act()


def test_replica_that_waits_says_for_what_until_it_has_begun(run: Run) -> None:
    replica = replicas.create(run, kind=ReplicaKind.INFERENCE, slot=0, launcher="slurm")
    events = Event.objects.count()
    replicas.waits(replica, reason=Reason(ReasonCode.QUEUED, why="job 7 is queued: others have their turn before it"))
    assert replica.state_reason == "job 7 is queued: others have their turn before it"
    assert replica.begun_at is None
    replicas.begun(replica, base_url="http://10.0.0.7:4711")
    assert (replica.state_reason, replica.base_url) == ("", "http://10.0.0.7:4711")
    begun_at = replica.begun_at
    assert begun_at is not None
    replicas.begun(replica, base_url="http://elsewhere")
    assert (replica.begun_at, replica.base_url) == (begun_at, "http://10.0.0.7:4711")
    assert Event.objects.count() == events, "no state changed"


def test_what_a_trainer_said_when_it_registered_stays(run: Run) -> None:
    replica = replicas.create(run, kind=ReplicaKind.TRAINER, slot=0, launcher="slurm")
    registered = Reason(ReasonCode.TRAINER_REGISTERED, epoch=1, world_size=2, hostname="n1", pid=7)
    replicas.ready(replica, reason=registered)
    replicas.begun(replica)
    assert replica.reason_code == ReasonCode.TRAINER_REGISTERED
