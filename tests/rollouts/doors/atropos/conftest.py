"""A server that remembers nothing of a moment ago: whoever asks is told how things stand."""

import pytest

from rollouts.selectors import queue
from rollouts.services.outside import clients


@pytest.fixture(autouse=True)
def exact_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "PRESSURE_AGE_S", 0.0)
    monkeypatch.setattr(clients, "HEARTBEAT_S", 0.0)
