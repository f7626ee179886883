"""Trainers: register, fetch batches of exactly the size they asked for, acknowledge by asking for more."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.db.models.functions import Now

from rollouts.models import Attempt, Batch, BatchItem, Delivery, EnvironmentClient, Event, Run, ScoredGroup
from rollouts.reasons import Reason, ReasonCode
from rollouts.services.outside import clients, deliveries
from rollouts.services.runs import life
from rollouts.states import BatchState, GroupState, RunState
from tests.rollouts.doors.atropos.api import Api, make_external_run, registration, tags
from workers.convergence import Convergence

pytestmark = pytest.mark.django_db(transaction=True)

NOT_REGISTERED = {"status": "error", "message": "Trainer not registered. Call /register first.", "batch": []}


def started(**terms: Any) -> Api:
    api = Api()
    api.start(**terms)
    return api


def test_without_a_registration_there_is_no_batch() -> None:
    api = Api()
    api.submit(size=4)
    assert api.get("/batch") == NOT_REGISTERED
    assert ScoredGroup.objects.get().state == GroupState.READY


def test_a_second_registration_changes_nothing() -> None:
    api = Api()
    first = api.register(batch_size=4)
    second = api.register(batch_size=16, wandb_project="other")
    assert first["uuid"] != second["uuid"]
    assert api.get("/info")["batch_size"] == 4
    assert api.get("/wandb_info")["project"] == "project"
    assert Attempt.objects.count() == 1
    assert Run.objects.get().epoch == 1


def test_groups_that_came_before_the_registration_are_trained() -> None:
    """Atropos would never see the registration again."""
    api = Api()
    api.submit(tag=1, size=4)
    api.register()
    assert tags(api.get("/batch")["batch"]) == [1]


def test_batches_are_full_exactly_and_oldest_first() -> None:
    api = started(batch_size=4)
    for tag in range(1, 8):
        api.submit(tag=tag)
    received = [tags(api.get("/batch")["batch"]) for _ in range(3)]
    assert received == [[1, 2], [3, 4], [5, 6]]
    assert api.get("/batch") == {"batch": None}
    assert api.get("/status") == {"current_step": 3, "queue_size": 1}


def test_sizes_that_do_not_divide_each_other_are_combined() -> None:
    """Atropos would leave these groups in its queue for ever."""
    api = started(batch_size=12)
    for tag, size in enumerate((8, 8, 3, 3, 2, 4), start=1):
        api.submit(tag=tag, size=size)
    batch = api.get("/batch")["batch"]
    assert sum(len(each["tokens"]) for each in batch) == 12


def test_a_batch_of_more_rollouts_than_there_will_ever_be_is_waited_for() -> None:
    api = started(batch_size=2**31 - 1)
    api.submit(size=4)
    assert api.get("/batch") == {"batch": None}


def test_the_step_counts_what_was_handed_out() -> None:
    api = started(batch_size=2, starting_step=10)
    for _ in range(3):
        api.submit()
    assert api.get("/status")["current_step"] == 10
    for step in (11, 12, 13):
        api.get("/batch")
        assert api.get("/status")["current_step"] == step


def test_to_ask_for_more_is_to_acknowledge() -> None:
    api = started(batch_size=2)
    api.submit()
    api.submit()
    api.get("/batch")
    assert Run.objects.get().next_step == 0
    assert Batch.objects.get().state == BatchState.DELIVERED
    api.get("/batch")
    assert Run.objects.get().next_step == 1
    assert list(Batch.objects.order_by("step").values_list("state", flat=True)) == [
        BatchState.TRAINED,
        BatchState.DELIVERED,
    ]
    assert api.get("/batch") == {"batch": None}
    assert Run.objects.get().next_step == 2


def test_asking_in_vain_writes_nothing() -> None:
    api = started()
    api.submit()
    before = Event.objects.count(), Run.objects.values().get()
    for _ in range(3):
        assert api.get("/batch") == {"batch": None}
    assert (Event.objects.count(), Run.objects.values().get()) == before


def test_the_last_batch_ends_the_run_although_nobody_asks_again() -> None:
    api = Api(make_external_run(max_steps=2))
    api.start(batch_size=2)
    for _ in range(3):
        api.submit()
    api.get("/batch")
    assert Run.objects.get().state == RunState.RUNNING
    api.get("/batch")
    run = Run.objects.get()
    assert (run.state, run.next_step) == (RunState.FINISHING, 2)
    assert Counter(ScoredGroup.objects.values_list("state", flat=True)) == {"trained": 2, "surplus": 1}
    response = api.request("GET", "/batch")
    assert (response.status_code, response.json()["status"]) == (410, "error")
    assert "finishing" in response.json()["message"]
    life.end(run, to=RunState.FINISHED)


def test_the_run_ends_when_its_last_batches_have_arrived_in_whatever_order() -> None:
    api = Api(make_external_run(max_steps=2))
    api.start(batch_size=2)
    for _ in range(2):
        api.submit()
    first, last = deliveries.take(api.run), deliveries.take(api.run)
    assert first is not None
    assert last is not None
    deliveries.finish(last)
    assert Run.objects.get().state == RunState.RUNNING, "one is on its way"
    deliveries.finish(first)
    run = Run.objects.get()
    assert (run.state, run.next_step) == (RunState.FINISHING, 2)


def test_the_run_ends_although_who_sent_its_last_batch_died_right_after_it() -> None:
    api = Api(make_external_run(max_steps=1))
    api.start(batch_size=2)
    api.submit()
    with patch.object(deliveries, "conclude", side_effect=OSError("killed")), pytest.raises(OSError, match="killed"):
        deliveries.finish(deliveries.take(api.run))
    assert Run.objects.get().state == RunState.RUNNING
    Convergence().converge(api.run.pk)
    assert Run.objects.get().state == RunState.FINISHED


def test_two_requests_at_the_same_time_get_two_batches() -> None:
    api = started(batch_size=4)
    for tag in range(20):
        api.submit(tag=tag)
    barrier = threading.Barrier(4)

    def fetch(_: int) -> list[int]:
        barrier.wait(10)
        return tags(api.get("/batch")["batch"])

    with ThreadPoolExecutor(4) as pool:
        received = list(pool.map(fetch, range(4)))
    assert sorted(received) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    items = BatchItem.objects.values_list("group", flat=True)
    assert len(set(items)) == len(items) == 8
    assert list(Batch.objects.order_by("step").values_list("step", flat=True)) == [0, 1, 2, 3]


def test_many_registrations_at_the_same_time_open_one_attempt() -> None:
    api = Api()
    barrier = threading.Barrier(4)

    def register(size: int) -> None:
        barrier.wait(10)
        api.register(batch_size=size)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(register, (1, 2, 3, 4)))
    attempt = Attempt.objects.get()
    assert attempt.number == 1
    assert Run.objects.get().epoch == 1


def expire(run: Run) -> None:
    """As if whoever sends had been silent for a term."""
    Delivery.objects.filter(batch__run=run).update(expires_at=Now() - timedelta(seconds=1))


def test_a_batch_that_did_not_arrive_is_given_again_before_any_new_one() -> None:
    api = started(batch_size=2)
    for tag in (1, 2, 3):
        api.submit(tag=tag)
    lost = deliveries.take(api.run)
    assert lost is not None
    assert tags(api.get("/batch")["batch"]) == [2], "while it is being sent, others get the next"
    deliveries.release(lost)
    again = api.request("GET", "/batch", headers={"accept-encoding": "identity"})
    assert again.content == lost.body
    assert tags(api.get("/batch")["batch"]) == [3]
    assert not deliveries.finish(lost), "it is somebody else's by then"
    assert Run.objects.get().next_step == 2, "in order: the second batch waited for the first"
    assert list(Batch.objects.order_by("step").values_list("deliveries", flat=True)) == [2, 1, 1]
    assert api.get("/status")["current_step"] == 3, "given twice is counted once"


def test_the_batch_of_a_sender_that_died_is_given_again_when_its_lease_ends() -> None:
    api = started(batch_size=2)
    api.submit(tag=1)
    lost = deliveries.take(api.run)
    assert lost is not None
    assert api.get("/batch") == {"batch": None}
    assert deliveries.renew(lost)
    expire(api.run)
    assert tags(api.get("/batch")["batch"]) == [1]
    assert not deliveries.renew(lost)


def two_environments(share: float | None, other: float | None = None, batch_size: int = 8) -> Api:
    api = started(batch_size=batch_size)
    api.register_env("a", min_batch_allocation=share)
    api.register_env("b", min_batch_allocation=other)
    return api


def test_a_minimum_allocation_is_kept_in_every_batch() -> None:
    api = two_environments(0.25, 0.5)
    for env_id, count in ((0, 9), (1, 3)):
        for _ in range(count):
            api.submit(env_id=env_id)
    first = api.get("/batch")["batch"]
    assert Counter(each["env_id"] for each in first)[1] >= 2
    assert api.get("/batch") == {"batch": None}, "the second has one group of the two it must have"
    api.submit(env_id=1)
    assert Counter(each["env_id"] for each in api.get("/batch")["batch"])[1] == 2


@pytest.mark.parametrize("shares", [(1.7, 1.0), (0.9, 0.9), (1.0, 1.0)])
def test_allocations_over_a_whole_batch_are_scaled_down(shares: tuple[float, float]) -> None:
    api = two_environments(*shares)
    for env_id in (0, 1):
        for _ in range(4):
            api.submit(env_id=env_id)
    assert Counter(each["env_id"] for each in api.get("/batch")["batch"]) == {0: 2, 1: 2}


@pytest.mark.parametrize("share", [0.0, -1.0, 0.1])
def test_an_allocation_of_no_whole_sequence_holds_nothing_up(share: float) -> None:
    api = two_environments(share)
    for _ in range(4):
        api.submit(env_id=1)
    assert len(api.get("/batch")["batch"]) == 4


def test_an_environment_that_left_holds_nothing_up() -> None:
    api = two_environments(0.5)
    for _ in range(4):
        api.submit(env_id=1)
    assert api.get("/batch") == {"batch": None}
    api.post("/disconnect-env", {"env_id": 0})
    assert len(api.get("/batch")["batch"]) == 4


def test_the_allocation_of_a_silent_environment_lapses_and_comes_back() -> None:
    """With Atropos one crashed environment stops the training for ever."""
    api = two_environments(0.5)
    for _ in range(8):
        api.submit(env_id=1)
    assert api.get("/batch") == {"batch": None}
    silence = timedelta(seconds=clients.ALLOCATION_LAPSE_S + 1)
    EnvironmentClient.objects.filter(index=0).update(seen_at=Now() - silence)
    assert len(api.get("/batch")["batch"]) == 4
    lapsed = Event.objects.get(object_kind="environmentclient", to_state="lapsed")
    assert str(lapsed.reason) == "a_0 was silent for 60 s: batches no longer wait for its minimum share of 0.5"
    api.status_env(0)
    assert EnvironmentClient.objects.get(index=0).lapsed_at is None
    back = Event.objects.get(object_kind="environmentclient", from_state="lapsed")
    assert (back.to_state, back.reason) == ("connected", Reason(ReasonCode.CLIENT_HEARD, client="a_0"))
    assert api.get("/batch") == {"batch": None}, "it counts again"


def test_a_lapse_is_told_once() -> None:
    api = two_environments(0.5)
    EnvironmentClient.objects.filter(index=0).update(seen_at=Now() - timedelta(hours=1))
    for _ in range(3):
        assert api.get("/batch") == {"batch": None}
    assert Event.objects.filter(to_state="lapsed").count() == 1


def test_every_batch_can_be_rebuilt_byte_for_byte() -> None:
    from rollouts.services.batches.forming import body_of

    api = started(batch_size=4)
    messages = [[{"role": "user", "content": "é 🙂"}], []]
    for tag in range(4):
        api.submit(tag=tag, messages=messages, inference_logprobs=[[1.0, -0.1, -1e-30]] * 2)
    sent = [api.request("GET", "/batch", headers={"accept-encoding": "identity"}).content for _ in range(2)]
    assert [body_of(batch) for batch in Batch.objects.order_by("step")] == sent


def test_a_trainer_of_a_run_that_was_stopped_is_told_why() -> None:
    api = started()
    life.request_stop(Run.objects.get(), actor="user:ada")
    response = api.request("GET", "/batch")
    assert response.status_code == 410
    assert "is stopping" in response.json()["message"]
    assert api.request("POST", "/register", json=registration()).status_code == 410


def test_a_stopped_run_has_trained_what_reached_its_trainer() -> None:
    """Nobody asks for more after a stop, which is how the last batch would have been acknowledged."""
    api = started(batch_size=2)
    for _ in range(2):
        api.submit()
    api.get("/batch")
    run = life.end(life.request_stop(Run.objects.get(), actor="user:ada"), to=RunState.STOPPED)
    assert (run.state, run.next_step) == (RunState.STOPPED, 1)
    assert [str(group.reason) for group in ScoredGroup.objects.filter(state=GroupState.TRAINED)] == [
        "it had arrived when the run was stopped"
    ]
    assert Counter(ScoredGroup.objects.values_list("state", flat=True)) == {"trained": 1, "surplus": 1}
    assert Batch.objects.get().state == BatchState.TRAINED


def test_the_last_batch_of_a_run_that_fails_was_trained_if_it_had_arrived() -> None:
    api = Api(make_external_run(max_steps=1))
    api.start(batch_size=2)
    for _ in range(2):
        api.submit()
    with patch.object(deliveries, "conclude"):
        api.get("/batch")
    run = life.end(Run.objects.get(), to=RunState.FAILED)
    assert (run.state, run.next_step) == (RunState.FAILED, 1)
    assert Counter(ScoredGroup.objects.values_list("state", flat=True)) == {"trained": 1, "surplus": 1}


def test_a_batch_that_had_not_arrived_when_its_run_was_stopped_is_surplus() -> None:
    api = started(batch_size=2)
    api.submit()
    assert deliveries.take(api.run) is not None
    run = life.end(life.request_stop(Run.objects.get(), actor="user:ada"), to=RunState.STOPPED)
    assert (run.next_step, ScoredGroup.objects.get().state) == (0, GroupState.SURPLUS)
