"""When the reconciler looks at a run: at once, later, again and again, or not at all."""

import threading

import pytest
from django.utils import timezone

from rollouts import bell
from rollouts.selectors import fleet
from rollouts.services import metrics
from rollouts.states import PolicyVersionState, ReplicaState
from tests.factories import make_policy_version, make_replica
from tests.workers.making import make_run
from tests.workers.reconciling import reconciling
from tests.workers.waiting import eventually
from workers.leadership import Leadership

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("stand_ins")]


@pytest.mark.parametrize("waits", [False, True])
def test_what_flows_through_a_run_is_looked_at_later_unless_something_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    monkeypatch.setattr("workers.reconciler.LATER_S", 3600.0)
    run, passes = make_run(), list[int]()
    if waits:
        make_policy_version(run, run.live_version + 1, state=PolicyVersionState.WRITTEN)

    def let_flow() -> None:
        for _ in range(30):
            metrics.record(run, step=1, values={"loss/mean": 1.0})
            assert bell.wait_until_sent(30)

    with reconciling(converge=passes.append, interval_s=3600.0):
        eventually(lambda: bell.ring_after_commit(run.pk) or len(passes) >= 3)
        before = len(passes)
        let_flow()
        if waits:
            eventually(lambda: let_flow() or len(passes) >= before + 10)
        else:
            assert len(passes) <= before + 2, "what rang before may still have been under way"


def test_what_flows_through_a_run_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.reconciler.LATER_S", 0.2)
    run, passes = make_run(), list[int]()
    with reconciling(converge=passes.append, interval_s=3600.0):
        eventually(lambda: metrics.record(run, step=1, values={"loss/mean": 1.0}) or len(passes) >= 4)


def test_a_run_is_looked_at_again_and_again_while_a_server_of_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.reconciler.LATER_S", 0.2)
    run, passes = make_run(), list[int]()
    make_replica(run, state=ReplicaState.STARTING)  # in a queue, for hours perhaps
    assert not fleet.list_starting(run).exists()
    begun = make_replica(run, slot=1, state=ReplicaState.STARTING, begun_at=timezone.now())
    assert list(fleet.list_starting(run)) == [begun]
    with reconciling(converge=passes.append, interval_s=3600.0):
        eventually(lambda: len(passes) >= 3)


def test_who_does_not_lead_any_more_looks_at_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.reconciler.LATER_S", 0.1)
    monkeypatch.setattr("workers.reconciler.STANDBY_S", 0.5)
    run, passes, refused, acquire = make_run(), list[int](), list[int](), Leadership.acquire
    make_replica(run, state=ReplicaState.STARTING, begun_at=timezone.now())  # so that one pass follows another
    taken = threading.Event()

    def refuse(leadership: Leadership) -> bool:
        if taken.is_set():
            refused.append(len(passes))
            return False
        return acquire(leadership)

    monkeypatch.setattr(Leadership, "acquire", refuse)
    monkeypatch.setattr(Leadership, "holds", lambda leadership: not taken.is_set())
    with reconciling(converge=passes.append):
        eventually(lambda: len(passes) >= 3)
        taken.set()
        eventually(lambda: len(refused) >= 5)
    assert refused[-1] == refused[2], "a second after it lost the lead no pass is on its way any more"
