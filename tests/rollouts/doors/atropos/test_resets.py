"""A reset ends an attempt and loses nothing, whoever is in the middle of something."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, transaction

from rollouts.models import Attempt, Batch, Delivery, Event, Run, ScoredGroup
from rollouts.services.outside import deliveries
from rollouts.states import BatchState, GroupState
from tests.rollouts.doors.atropos.api import Api, make_external_run, tags

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


def reset(api: Api) -> None:
    response = api.request("GET", "/reset_data")
    assert (response.status_code, response.text) == (200, "Reset successful")
    assert response.headers["content-type"] == "text/plain; charset=utf-8"


def started(**terms: Any) -> Api:
    api = Api()
    api.start(**terms)
    return api


def test_what_waits_is_archived_with_a_reason() -> None:
    api = started(batch_size=2, max_token_len=99, starting_step=5)
    api.register_env()
    for _ in range(3):
        api.submit(env_id=0)
    api.get("/batch")
    reset(api)
    assert api.get("/info") == {"batch_size": -1, "max_token_len": 99}
    assert api.get("/wandb_info") == {"group": None, "project": None}
    assert api.get("/status") == {"current_step": 0, "queue_size": 0}
    assert api.register_env() == {"status": "wait for trainer to start"}
    assert api.get("/batch")["status"] == "error"
    assert api.get("/latest_example")["tokens"], "it survives"
    groups = ScoredGroup.objects.order_by("id")
    assert [(group.state, group.state_reason) for group in groups] == [
        (GroupState.TRAINED, "it had arrived when attempt 1 was reset"),
        (GroupState.SURPLUS, "archived by a reset of attempt 1"),
        (GroupState.SURPLUS, "archived by a reset of attempt 1"),
    ]
    closed = Event.objects.get(object_kind="attempt", to_state="closed")
    assert closed.from_state == "started"


def test_a_reset_without_an_attempt_archives_what_came_early() -> None:
    api = Api()
    api.submit()
    reset(api)
    group = ScoredGroup.objects.get()
    assert (group.state, group.state_reason) == (GroupState.SURPLUS, "archived by a reset before attempt 1")
    assert not Attempt.objects.exists()
    before = Run.objects.values().get()
    reset(api)
    assert Run.objects.values().get() == before


def test_the_next_attempt_begins_afresh_and_steps_go_on() -> None:
    api = started(batch_size=2, starting_step=0)
    for tag in (1, 2):
        api.submit(tag=tag)
        api.get("/batch")
    reset(api)
    api.submit(tag=3)
    api.register(batch_size=2, starting_step=100)
    assert api.get("/status") == {"current_step": 100, "queue_size": 1}, "what came early is its own"
    assert tags(api.get("/batch")["batch"]) == [3]
    assert api.get("/status")["current_step"] == 101
    assert list(Attempt.objects.order_by("number").values_list("number", "first_step")) == [(1, 0), (2, 2)]
    assert list(Batch.objects.order_by("step").values_list("step", flat=True)) == [0, 1, 2]
    assert Run.objects.get().next_step == 2


def test_a_batch_under_way_is_archived_and_cannot_arrive_any_more() -> None:
    api = started(batch_size=2)
    for tag in (1, 2, 3):
        api.submit(tag=tag)
    zombie = deliveries.take(api.run)
    assert zombie is not None
    api.get("/batch")
    epoch = Run.objects.get().epoch
    reset(api)
    assert not deliveries.renew(zombie)
    assert not deliveries.finish(zombie)
    assert Run.objects.get().epoch == epoch + 1
    assert list(ScoredGroup.objects.order_by("id").values_list("state", flat=True)) == [
        GroupState.SURPLUS,
        GroupState.TRAINED,
        GroupState.SURPLUS,
    ]
    assert Run.objects.get().next_step == 2, "an abandoned step is behind us too"
    assert list(Batch.objects.order_by("step").values_list("state", flat=True)) == [
        BatchState.DELIVERED,
        BatchState.TRAINED,
    ]
    api.register(batch_size=2)
    api.submit(tag=4)
    assert tags(api.get("/batch")["batch"]) == [4]
    assert api.get("/batch") == {"batch": None}
    assert Run.objects.get().next_step == 3


def is_waiting_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        return bool(cursor.fetchone()[0])


def test_a_batch_that_arrives_during_a_reset_is_trained_and_not_archived() -> None:
    api = started(batch_size=2)
    api.submit()
    parcel = deliveries.take(api.run)
    assert parcel is not None
    resetting = threading.Thread(target=reset, args=[api])
    with transaction.atomic():
        assert deliveries.finish(parcel)
        resetting.start()
        deadline = time.monotonic() + 20
        while not is_waiting_for_a_lock():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    resetting.join(20)
    assert ScoredGroup.objects.get().state == GroupState.TRAINED
    assert Batch.objects.get().state == BatchState.TRAINED
    assert Run.objects.get().next_step == 1


def test_resets_registrations_and_groups_at_the_same_time_leave_the_ledger_whole() -> None:
    api = Api(make_external_run())
    api.start(batch_size=4)
    barrier = threading.Barrier(6)

    def submit(tag: int) -> None:
        for _ in range(10):
            api.submit(tag=tag)

    def train(_: int) -> None:
        for _ in range(10):
            api.register(batch_size=4)
            api.get("/batch")

    def start_over(_: int) -> None:
        for _ in range(5):
            reset(api)

    def begin(job: tuple[Any, int]) -> None:
        barrier.wait(10)
        job[0](job[1])

    jobs = [(submit, 1), (submit, 2), (submit, 3), (train, 0), (train, 0), (start_over, 0)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(begin, jobs))
    assert ScoredGroup.objects.count() == 30, "none lost"
    reset(api)
    states = Counter(ScoredGroup.objects.values_list("state", flat=True))
    assert set(states) <= {GroupState.TRAINED, GroupState.SURPLUS}, "none left behind"
    batches = list(Batch.objects.order_by("step"))
    assert [batch.step for batch in batches] == list(range(len(batches)))
    assert Run.objects.get().next_step == len(batches)
    assert not Delivery.objects.filter(sent_at=None, abandoned_at=None).exists()
    trained = sum(batch.items.count() for batch in batches if batch.state == BatchState.TRAINED)
    assert trained == states[GroupState.TRAINED]
    assert Attempt.objects.filter(closed_at=None).count() == 0
