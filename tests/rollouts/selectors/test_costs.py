"""What a run has cost: every second of a replica is one part, and the parts add up."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import given, settings
from hypothesis import strategies as st

from rollouts.models import Event, MetricPoint, Replica, ReplicaKind, ReplicaLoad, Run, RunKind, ScoredGroup
from rollouts.selectors import costs
from rollouts.selectors.costs import Became, Seconds, share_out
from rollouts.states import GroupState, ReplicaState
from tests import store
from tests.factories import make_evaluation, make_event, make_group, make_replica, make_run

pytestmark = pytest.mark.django_db

BEGAN = timezone.now() - timedelta(hours=5)


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def replica(
    run: Run,
    *,
    kind: ReplicaKind = ReplicaKind.INFERENCE,
    began_s: float = 0,
    answered_s: float | None = None,
    ended_s: float | None = None,
    idle_s: float | None = None,
    **columns: Any,
) -> Replica:
    """One with 2 GPUs and 8 cores that lived so, in seconds after BEGAN."""
    state = ReplicaState.READY if ended_s is None else ReplicaState.EXITED
    row = make_replica(run, kind=kind, state=state, **{"gpus": 2, "cores": 8, "slot": run.replicas.count(), **columns})
    if answered_s is not None:
        event = make_event(run, kind="replica", object_id=row.pk, to="ready")
        with store.beyond_rights():
            Event.objects.filter(pk=event.pk).update(at=at(answered_s))
    with store.beyond_rights():
        Replica.objects.filter(pk=row.pk).update(
            created_at=at(began_s), **({} if ended_s is None else {"ended_at": at(ended_s)})
        )
    if idle_s is not None:
        ReplicaLoad.objects.create(replica=row, idle_s=idle_s)
    return row


def step(run: Run, number: int, *, done_s: float, took_s: float, waited_s: float = 0.0) -> None:
    for key, value in {"time/step": took_s, "time/wait_for_batch": waited_s}.items():
        MetricPoint.objects.create(run=run, key=key, step=number, value=value, recorded_at=at(done_s))


def group(run: Run, state: str, tokens: int) -> None:
    row = make_group(run, state=state, **({"withheld": "rejected"} if state == GroupState.REJECTED else {}))
    with store.beyond_rights():
        ScoredGroup.objects.filter(pk=row.pk).update(token_count=tokens)


def gpu_s(run: Run) -> dict[str, int]:
    return {became.value: seconds.gpu_s for became, seconds in costs.of_run(run).spent.items() if seconds.gpu_s}


def test_a_run_without_replicas_has_cost_nothing() -> None:
    cost = costs.of_run(make_run())
    assert (cost.total, cost.replicas, cost.unmeasured) == (Seconds(), 0, 0)
    assert list(cost.spent) == list(Became)


def test_the_time_of_servers_goes_to_what_became_of_the_groups_by_their_tokens() -> None:
    run = make_run()
    replica(run, answered_s=100, ended_s=1100, idle_s=200)
    for state, tokens in {
        GroupState.TRAINED: 400,
        GroupState.STALE: 100,
        GroupState.FILTERED: 100,
        GroupState.FAILED: 50,
        GroupState.REJECTED: 50,
        GroupState.SURPLUS: 100,
        GroupState.READY: 100,
        GroupState.BATCHED: 100,
    }.items():
        group(run, state, tokens)
    make_group(run, state=GroupState.PLAYING)
    assert gpu_s(run) == {
        "starting": 200,
        "idle": 400,
        "trained": 640,
        "stale": 160,
        "filtered": 160,
        "failed": 80,
        "rejected": 80,
        "surplus": 160,
        "waiting": 320,
    }
    cost = costs.of_run(run)
    assert cost.total == Seconds(2200, 8800)
    assert all(seconds.core_s == 4 * seconds.gpu_s for seconds in cost.spent.values())


def test_evaluations_are_a_part_of_their_own() -> None:
    run = make_run()
    replica(run, answered_s=0, ended_s=10)
    make_group(run, state=GroupState.EVALUATED, evaluation=make_evaluation(run, 0))
    assert gpu_s(run) == {"evaluated": 20}


def test_a_trainer_starts_until_its_first_step_begins_and_is_idle_while_it_waits() -> None:
    run = make_run()
    replica(run, kind=ReplicaKind.TRAINER, answered_s=60, ended_s=400)
    step(run, 0, done_s=200, took_s=100, waited_s=70)
    step(run, 1, done_s=260, took_s=50, waited_s=10)
    assert gpu_s(run) == {"starting": 200, "trained": 140, "idle": 460}


def test_steps_that_a_lost_trainer_did_count_to_the_one_that_did_them_again() -> None:
    run = make_run()
    replica(run, kind=ReplicaKind.TRAINER, answered_s=10, ended_s=100)
    replica(run, kind=ReplicaKind.TRAINER, began_s=110, answered_s=120, ended_s=200)
    step(run, 0, done_s=180, took_s=50)
    assert gpu_s(run) == {"starting": 2 * (100 + 20), "trained": 100, "idle": 40}


def test_a_trainer_of_examples_waits_for_nobody() -> None:
    run = make_run(preset="reverse-text-sft")
    assert run.kind == RunKind.SFT
    replica(run, kind=ReplicaKind.TRAINER, answered_s=10, ended_s=100)
    MetricPoint.objects.create(run=run, key="time/step", step=0, value=60, recorded_at=at(90))
    assert gpu_s(run) == {"starting": 60, "trained": 120, "idle": 20}


def test_what_never_answered_has_only_been_starting() -> None:
    run = make_run()
    replica(run, ended_s=30)
    replica(run, kind=ReplicaKind.TRAINER, answered_s=5, ended_s=40)
    assert gpu_s(run) == {"starting": 140}


def test_a_job_costs_nothing_while_it_waits_for_a_node() -> None:
    run = make_run()
    replica(run, launcher="slurm", state_reason="job 7 is queued")
    assert costs.of_run(run).total == Seconds()
    replica(run, launcher="slurm", began_s=0, begun_at=at(1000), answered_s=1010, ended_s=1100)
    assert gpu_s(run) == {"starting": 20, "waiting": 180}


def test_what_runs_still_is_counted_until_now() -> None:
    run = make_run()
    replica(run, answered_s=0)
    cost = costs.of_run(run)
    assert 0 <= cost.total.gpu_s - 2 * (timezone.now() - BEGAN).total_seconds() + 4 <= 8
    assert not cost.is_final
    over = make_run(state="finished")
    replica(over, answered_s=0, ended_s=10)
    assert costs.of_run(over).is_final


def test_replicas_of_which_nothing_was_noted_are_named_and_count_as_nothing() -> None:
    run = make_run()
    replica(run, answered_s=0, ended_s=10, gpus=None, cores=None)
    replica(run, answered_s=0, ended_s=10)
    cost = costs.of_run(run)
    assert (cost.total, cost.unmeasured, cost.replicas) == (Seconds(20, 80), 1, 2)


def test_more_idle_than_it_lived_is_what_it_lived() -> None:
    run = make_run()
    replica(run, answered_s=4, ended_s=10, idle_s=1000)
    assert gpu_s(run) == {"starting": 8, "idle": 12}


@given(st.integers(0, 10**12), st.dictionaries(st.sampled_from(Became), st.integers(0, 10**15)))
def test_what_is_shared_out_adds_up_and_each_part_is_fair(amount: int, weights: dict[Became, int]) -> None:
    parts = share_out(amount, weights)
    assert sum(parts.values()) == amount
    total = sum(weights.values())
    if total:
        assert all(abs(parts[each] * total - amount * weight) < total for each, weight in weights.items())


seconds = st.floats(0, 5000)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(ReplicaKind), seconds, seconds, seconds, seconds, st.integers(0, 3)), max_size=4
    ),
    st.lists(st.tuples(seconds, seconds, seconds), max_size=4),
)
def test_the_parts_of_any_run_add_up_to_what_its_replicas_lived(
    lives: list[tuple[ReplicaKind, float, float, float, float, int]], steps: list[tuple[float, float, float]]
) -> None:
    run = make_run()
    for kind, began, answered, ended, idle, gpus in lives:
        replica(run, kind=kind, began_s=began, answered_s=answered, ended_s=ended, idle_s=idle, gpus=gpus)
    for number, (done, took, waited) in enumerate(steps):
        step(run, number, done_s=done, took_s=took, waited_s=min(waited, took))
    group(run, GroupState.TRAINED, 3)
    group(run, GroupState.STALE, 4)
    cost = costs.of_run(run)
    lived = [(max(0.0, ended - began), gpus) for _, began, _, ended, _, gpus in lives]
    assert all(each.gpu_s >= 0 and each.core_s >= 0 for each in cost.spent.values())
    assert abs(cost.total.gpu_s - sum(each * gpus for each, gpus in lived)) <= sum(gpus for _, gpus in lived)
    assert abs(cost.total.core_s - 8 * sum(each for each, _ in lived)) <= 8 * len(lived)
