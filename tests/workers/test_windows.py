"""How many groups of an environment are played at a time, by how the last ones went."""

import pytest

from workers import windows
from workers.windows import Window


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000.0]
    monkeypatch.setattr(windows.time, "monotonic", lambda: now[0])
    return now


def window(first: int = 16) -> Window:
    return Window(16, first=first, longest_pause_s=30.0)


def test_failures_close_it_by_half_and_then_it_pauses_longer_each_time(clock: list[float]) -> None:
    one, rooms = window(), []
    for _ in range(4):
        one.failed()
        rooms.append(one.room())
    assert rooms == [8, 4, 2, 1]
    assert not one.is_failing
    pauses = []
    for _ in range(7):
        one.failed()
        began = clock[0]
        while one.room() == 0:
            clock[0] += 0.125
        pauses.append(clock[0] - began)
    assert one.is_failing
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.25, 30.0)


def test_a_success_ends_the_pause_and_successes_open_it_again(clock: list[float]) -> None:
    one = window(first=1)
    one.failed()
    assert one.room() == 0
    one.succeeded()
    assert (one.room(), one.is_failing) == (2, False)
    for _ in range(30):
        one.succeeded()
    one.playing = 5
    assert one.room() == 11


def test_one_failure_among_many_successes_costs_little(clock: list[float]) -> None:
    one = window()
    one.failed()
    for _ in range(10):
        one.succeeded()
    assert one.room() == 16
