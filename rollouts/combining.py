"""Do together what several threads ask for at the same time: one transaction, one fsync, for all who wait.

    thread A: [item] ─┐
    thread B: [item] ─┼─ whoever gets the turn does all that wait ─► every thread gets its own result, or its own error
    thread C: [item] ─┘

Nobody waits for company: a lone item is done at once, and while it is being done the next ones gather.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class _Slot(Generic[T, R]):
    def __init__(self, item: T) -> None:
        self.item = item
        self.is_done = False
        self.result: R | None = None
        self.error: BaseException | None = None


class Combiner(Generic[T, R]):
    """Calls ``work`` with as many items as wait, at most ``limit`` at once, and never twice at the same time.

    ``work`` does all of its items or raises and has done none. When it raises for several items they are done one by
    one, so that an item only gets the errors it makes itself.
    """

    def __init__(self, work: Callable[[Sequence[T]], Sequence[R]], limit: int) -> None:
        self._work = work
        self._limit = limit
        self._turn = threading.Lock()
        self._waiting: list[_Slot[T, R]] = []
        self._lock = threading.Lock()

    def __call__(self, item: T) -> R:
        """The item's result, or its error. Blocks until it is done."""
        slot: _Slot[T, R] = _Slot(item)
        with self._lock:
            self._waiting.append(slot)
        with self._turn:
            while not slot.is_done:
                with self._lock:
                    batch, self._waiting = self._waiting[: self._limit], self._waiting[self._limit :]
                self._do(batch)
        if slot.error is not None:
            raise slot.error
        return slot.result  # type: ignore[return-value]  # done without an error

    def _do(self, batch: list[_Slot[T, R]]) -> None:
        try:
            results = self._work([slot.item for slot in batch])
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread of whoever asked
            if len(batch) == 1 or not isinstance(error, Exception):
                for slot in batch:
                    slot.error, slot.is_done = error, True
                return
            for slot in batch:
                self._do([slot])
            return
        for slot, result in zip(batch, results, strict=True):
            slot.result, slot.is_done = result, True
