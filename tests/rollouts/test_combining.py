"""Threads that ask at the same time share the work, and each gets what is its own."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rollouts.combining import Combiner

DEADLINE_S = 30


class Gate:
    """Work that waits to be let through, and remembers what it was given."""

    def __init__(self, answer: Callable[[int], Any] = lambda item: item * 10) -> None:
        self.calls: list[list[int]] = []
        self.arrived = threading.Semaphore(0)
        self.through = threading.Semaphore(0)
        self._answer = answer

    def __call__(self, items: Sequence[int]) -> list[Any]:
        self.calls.append(list(items))
        self.arrived.release()
        assert self.through.acquire(timeout=DEADLINE_S)
        return [self._answer(item) for item in items]

    def wait_for(self, calls: int) -> None:
        for _ in range(calls):
            assert self.arrived.acquire(timeout=DEADLINE_S)


def gathered(combiner: Combiner[int, Any], count: int) -> None:
    """Wait until so many items wait for a lane."""
    waited = threading.Event()
    for _ in range(DEADLINE_S * 1000):
        if len(combiner._waiting) == count:
            return
        waited.wait(0.001)
    raise AssertionError(f"{len(combiner._waiting)} wait, not {count}")


def test_a_lone_item_is_done_at_once() -> None:
    combiner: Combiner[int, int] = Combiner(lambda items: [item + 1 for item in items], limit=4, lanes=1)
    assert [combiner(1), combiner(2)] == [2, 3]


def test_what_comes_while_the_lanes_are_busy_is_done_together_up_to_the_limit() -> None:
    gate = Gate()
    combiner: Combiner[int, int] = Combiner(gate, limit=3, lanes=2)
    with ThreadPoolExecutor(8) as threads:
        first = [threads.submit(combiner, item) for item in (0, 1)]
        gate.wait_for(2)
        rest = []
        for item in range(2, 7):
            rest.append(threads.submit(combiner, item))
            gathered(combiner, item - 1)
        gate.through.release(8)
        assert [each.result(DEADLINE_S) for each in [*first, *rest]] == [item * 10 for item in range(7)]
    assert sorted(gate.calls[:2]) == [[0], [1]]
    assert sorted(gate.calls[2:]) == [[2, 3, 4], [5, 6]]


def test_an_item_gets_only_the_error_that_it_makes() -> None:
    def work(items: Sequence[int]) -> list[int]:
        if any(item < 0 for item in items):
            raise ValueError(f"negative: {items}")
        return [item * 10 for item in gate(items)]

    gate = Gate(lambda item: item)
    combiner: Combiner[int, int] = Combiner(work, limit=8, lanes=1)
    with ThreadPoolExecutor(8) as threads:
        busy = threads.submit(combiner, 1)
        gate.wait_for(1)
        good, bad = [threads.submit(combiner, item) for item in (2, 3)], threads.submit(combiner, -1)
        gathered(combiner, 3)
        gate.through.release(8)
        assert [each.result(DEADLINE_S) for each in [busy, *good]] == [10, 20, 30]
        with pytest.raises(ValueError, match=r"negative: \[-1\]"):
            bad.result(DEADLINE_S)


def test_many_threads_get_their_own_results_and_nothing_is_done_twice() -> None:
    done: list[int] = []

    def work(items: Sequence[int]) -> list[int]:
        done.extend(items)
        return [item * 10 for item in items]

    combiner: Combiner[int, int] = Combiner(work, limit=5, lanes=3)
    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(combiner, range(5000))) == [item * 10 for item in range(5000)]
    assert sorted(done) == list(range(5000))
    assert combiner._free_lanes == 3
