"""A queue that is counted whenever somebody asks, however slow the machine is."""

import pytest

from rollouts.selectors import queue
from rollouts.services import clients


@pytest.fixture(autouse=True)
def exact_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "CHEAP_S", 60.0)
    monkeypatch.setattr(queue, "PRESSURE_AGE_S", 0.0)
    monkeypatch.setattr(clients, "HEARTBEAT_S", 0.0)
