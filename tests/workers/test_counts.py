"""What the drivers of a run count between them."""

import asyncio
from types import SimpleNamespace

import pytest

from rollouts.models import MetricPoint
from tests.workers.making import make_started_run
from workers import counts
from workers.counts import Counts


@pytest.mark.django_db(transaction=True)
def test_drivers_that_wait_at_the_same_time_count_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run, clock = make_started_run(), SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(counts, "time", clock)

    async def wait() -> None:
        drivers = [Counts(run), Counts(run)]
        for driver in drivers:
            await driver.note_waiting(is_waiting=True, drivers=2)
        clock.monotonic = lambda: 10.0
        for driver in drivers:
            await driver.report(drivers=2)

    asyncio.run(wait())
    assert MetricPoint.objects.get(run=run, key="time/wait_for_policy").value == 10.0
