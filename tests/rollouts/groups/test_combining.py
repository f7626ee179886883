"""Threads that ask at the same time share the work, and each gets what is its own."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rollouts.services.groups.combining import Combiner
from tests.workers.waiting import eventually

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
    eventually(lambda: len(combiner.waiting) == count, what=f"{count} items wait")


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
    assert combiner.free_lanes == 3


def test_an_item_that_is_prepared_elsewhere_is_waited_for() -> None:
    gate = Gate()
    gate.through.release(8)
    combiner: Combiner[int, int] = Combiner(gate, limit=8, lanes=1, patience_s=DEADLINE_S)
    first_asked, may_ask = threading.Event(), threading.Event()

    def ask(item: int) -> int:
        with combiner.preparing():
            first_asked.set()
            assert may_ask.wait(DEADLINE_S)
            return combiner(item)

    with ThreadPoolExecutor(2) as threads:
        slow = threads.submit(ask, 1)
        assert first_asked.wait(DEADLINE_S)
        quick = threads.submit(combiner, 2)
        eventually(lambda: not combiner.free_lanes, what="the quick one has the lane")
        may_ask.set()
        assert [slow.result(DEADLINE_S), quick.result(DEADLINE_S)] == [10, 20]
    assert gate.calls == [[2, 1]]


def test_nobody_waits_for_items_that_do_not_come() -> None:
    combiner: Combiner[int, int] = Combiner(list, limit=8, lanes=1, patience_s=10 * DEADLINE_S)

    def find_none() -> None:
        with combiner.preparing():
            raise ValueError("there is none")

    with pytest.raises(ValueError, match="there is none"):
        find_none()
    with combiner.preparing():
        assert combiner(1) == 1, "who asks waits for others, not for itself"
        assert combiner(2) == 2
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(combiner, 3).result(DEADLINE_S) == 3


def test_who_prepares_for_long_is_waited_for_only_a_moment() -> None:
    combiner: Combiner[int, int] = Combiner(list, limit=8, lanes=1, patience_s=0.01)
    with ThreadPoolExecutor(1) as threads, combiner.preparing():
        assert threads.submit(combiner, 1).result(DEADLINE_S) == 1


def test_a_full_batch_waits_for_nobody() -> None:
    combiner: Combiner[int, int] = Combiner(list, limit=1, lanes=1, patience_s=10 * DEADLINE_S)
    with ThreadPoolExecutor(1) as threads, combiner.preparing():
        assert threads.submit(combiner, 1).result(DEADLINE_S) == 1
