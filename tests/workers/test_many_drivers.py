"""Drivers of one run, many: they do not all ask at every ring, and each hears of work soon where it is alone."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rollouts import bell
from rollouts.models import DriverLoad, PolicyVersion, Run
from rollouts.selectors import drivers
from rollouts.services.groups import leases, loads
from rollouts.services.runs import policies
from tests.workers.making import make_server, make_started_run
from tests.workers.stub_server import StubServer, stub_server
from tests.workers.waiting import eventually
from workers import episodes
from workers.episodes import Driver

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]  # drivers live for seconds


@pytest.fixture
def stub() -> Iterator[StubServer]:
    with stub_server() as server:
        yield server


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many groups each claim gave."""
    found: list[int] = []
    claim = leases.claim

    def counted(*arguments: Any, **options: Any) -> Any:
        answer = claim(*arguments, **options)
        found.append(len(answer.claims))
        return answer

    monkeypatch.setattr(episodes.leases, "claim", counted)
    return found


@contextmanager
def driving(run: Run) -> Iterator[Driver]:
    stop = threading.Event()
    driver = Driver(run, stopping=stop.is_set)
    thread = threading.Thread(target=lambda: asyncio.run(driver.drive()))
    thread.start()
    try:
        yield driver
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


def say_of_others(run: Run, count: int) -> None:
    for at in range(count):
        loads.report(run, holder=f"other-{at}", sessions=0, queued=0, asking=0, scoring=0, tokens=0)


def rang(run: Run, times: int) -> None:
    """Let the bell of a run be heard so often."""
    for _ in range(times):
        bell.ring_after_commit(run.pk)
        assert bell.wait_until_sent(5)


def in_vain(claims: list[int]) -> Callable[[], bool]:
    return lambda: claims[-1:] == [0]


def test_driver_among_many_does_not_ask_at_every_ring(
    stub: StubServer, claims: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_started_run()
    make_server(run, stub.url)
    say_of_others(run, 3)
    assert drivers.count(run) == 3
    monkeypatch.setattr(episodes, "_VAIN_CLAIMS_PER_S", 0.001)
    monkeypatch.setattr(episodes.random, "uniform", lambda low, high: high)
    with driving(run) as driver:
        eventually(in_vain(claims))
        asked = len(claims)
        rang(run, 20)
        eventually(lambda: driver._drivers == 4)
        assert len(claims) == asked


def test_driver_alone_hears_at_once_that_there_is_work(stub: StubServer, claims: list[int]) -> None:
    run = make_started_run()
    make_server(run, stub.url)
    with driving(run):
        eventually(in_vain(claims))
        asked = len(claims)
        version = PolicyVersion.objects.create(run=run, version=1, path="somewhere")
        stub.label = "1"
        policies.published(version)
        eventually(lambda: sum(claims[asked:]) == 2)
    assert DriverLoad.objects.filter(run=run).count() == 0
