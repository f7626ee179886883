"""Group commit: what several threads submit at the same time shares one transaction and one fsync.

    thread A: [item] ─┐
    thread B: [item] ─┼─ the leader, a thread with a lane, commits all that wait ─► each gets its result or error
    thread C: [item] ─┘

A lone item is committed at once; while all lanes are busy the next items queue. A leader waits up to `patience_s` for
items that other threads are `preparing`: one more in its transaction costs far less than a transaction of its own.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from django.db import InterfaceError, OperationalError

T = TypeVar("T")
R = TypeVar("R")

_AWAY = ("08", "57P")
"""How the states of a server begin that ends or refuses connections."""


def database_is_away(error: Exception) -> bool:
    """Whether it cannot be asked at all; not that a statement was cancelled, met a deadlock, or was too large."""
    if not isinstance(error, OperationalError | InterfaceError):
        return False
    state = getattr(error.__cause__, "sqlstate", None)  # none: nobody answered
    return state is None or state.startswith(_AWAY)


class _Slot(Generic[T, R]):
    """One thread's item. The thread sleeps until it is `woken`, once: its item is done, or it is to do `batch`."""

    def __init__(self, item: T) -> None:
        self.item = item
        self.result: R | None = None
        self.error: BaseException | None = None
        self.batch: list[_Slot[T, R]] = []
        self.woken = threading.Lock()
        self.woken.acquire()


class _Prepares(threading.local):
    """Whether this thread is about to ask."""

    now = False


class Combiner(Generic[T, R]):
    """Calls ``work`` with as many items as wait, at most ``limit`` at once, in at most ``lanes`` threads at a time.

    Items that are being prepared when a lane is free are waited for, ``patience_s`` at most.

    ``work`` does all of its items or raises and has done none. When it raises for several items they are done one by
    one, so that an item only gets the errors it makes itself; but for an error that ``is_of_all``, which no item makes:
    a database that is away would be waited for by each in turn.
    """

    def __init__(
        self,
        work: Callable[[Sequence[T]], Sequence[R]],
        *,
        limit: int,
        lanes: int,
        patience_s: float = 0.0,
        is_of_all: Callable[[Exception], bool] = lambda _error: False,
    ) -> None:
        self._work = work
        self._is_of_all = is_of_all
        self._limit = limit
        self._patience_s = patience_s
        self.free_lanes = lanes
        self.waiting: list[_Slot[T, R]] = []
        """Items that no lane has taken yet."""
        self._prepares = _Prepares()
        self._preparing = 0
        """Threads that are."""
        self._lock = threading.Lock()
        self._gathered = threading.Condition(self._lock)
        """Nobody prepares an item any more, or no more are taken at once."""

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """A block in which a thread makes an item and then asks for it, or finds that there is none to ask for."""
        with self._lock:
            self._preparing += 1
        self._prepares.now = True
        try:
            yield
        finally:
            with self._lock:
                self._is_prepared()

    def __call__(self, item: T) -> R:
        """The item's result, or its error. Blocks until it is done."""
        slot: _Slot[T, R] = _Slot(item)
        with self._lock:
            self._is_prepared()
            if self.free_lanes:  # then nobody waits
                self.free_lanes -= 1
                slot.batch = [slot]
            else:
                self.waiting.append(slot)
                if len(self.waiting) >= self._limit - 1:
                    self._gathered.notify_all()
        if not slot.batch:
            slot.woken.acquire()
        if slot.batch:
            self._lead(slot)
        if slot.error is not None:
            raise slot.error
        return slot.result  # type: ignore[return-value]  # done without an error

    def _is_prepared(self) -> None:
        if self._prepares.now:
            self._prepares.now = False
            self._preparing -= 1
            if not self._preparing:
                self._gathered.notify_all()

    def _lead(self, leader: _Slot[T, R]) -> None:
        """Do the leader's batch, wake its threads, and hand the lane to the first who waits."""
        with self._lock:
            self._gathered.wait_for(
                lambda: not self._preparing or len(leader.batch) + len(self.waiting) >= self._limit,
                self._patience_s,
            )
            self._top_up(leader.batch)
        try:
            self._do(leader.batch)
        finally:
            with self._lock:
                following = self.waiting[:1]
                if following:
                    self._top_up(following[0].batch)
                else:
                    self.free_lanes += 1
            for slot in [*following, *leader.batch]:
                if slot is not leader:
                    slot.woken.release()

    def _top_up(self, batch: list[_Slot[T, R]]) -> None:
        room = self._limit - len(batch)
        batch += self.waiting[:room]
        del self.waiting[:room]

    def _do(self, batch: list[_Slot[T, R]]) -> None:
        try:
            results = self._work([slot.item for slot in batch])
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread of whoever asked
            if len(batch) == 1 or not isinstance(error, Exception) or self._is_of_all(error):
                for slot in batch:
                    slot.error = error
                return
            for slot in batch:
                self._do([slot])
            return
        for slot, result in zip(batch, results, strict=True):
            slot.result = result
