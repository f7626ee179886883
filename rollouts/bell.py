"""The doorbell: a notification "run R changed", sent at most once. It carries no data; who gets it reads Postgres.

    transition commits -> ring_after_commit -> a thread of this process -> Channels groups "run.<key>", "runs" and
                                                                            |             "changes" or "flows"
                                                                  drivers, browsers            |
                                                                                           reconciler

What flows through a run (its groups, leases, batches and metrics, many times a second) is told apart from what changes
it: nothing has to be started, published or ended at once because of it.

One daemon thread per process owns the connection to Redis, so that callers never wait for it: with Redis down a ring is
dropped with a log line. Rings of one run are merged while one is on its way, at most one per INTERVAL_S.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from channels.layers import get_channel_layer
from django.db import connection, transaction

from rollouts.models import Run

log = logging.getLogger(__name__)

INTERVAL_S = 0.1
"""Shortest time between two rings of one run from one process."""
SEND_DEADLINE_S = 2.0
ALL_RUNS = "runs"
"""Group that hears every run."""
CHANGES, FLOWS = "changes", "flows"
"""Groups of which one hears a ring of any run: whether something changed it, or only flows through it."""


def group_of(run_key: str) -> str:
    return f"run.{run_key}"


def ring_after_commit(run_id: int, *, is_flow: bool = False) -> None:
    """Ring for a run once the present transaction has committed; at once if there is none.

    ``is_flow``: of something that only flows through it.
    """
    if connection.in_atomic_block:
        for ring in (hook[1] for hook in connection.run_on_commit):
            if isinstance(ring, _Ring) and ring.run_id == run_id:
                ring.is_flow = ring.is_flow and is_flow
                return
    # Robust: the caller's rows are committed, so a bell that is broken must not look like a failure of theirs.
    transaction.on_commit(_Ring(run_id, is_flow=is_flow), robust=True)


class _Ring:
    """An on-commit hook that can be recognised, so that a transaction rings once per run."""

    def __init__(self, run_id: int, *, is_flow: bool) -> None:
        self.run_id = run_id
        self.is_flow = is_flow
        self.__qualname__ = f"ring of run {run_id}"  # Django names a hook that broke

    def __call__(self) -> None:
        ringer().ring(self.run_id, is_flow=self.is_flow)


class _Ringer:
    """The thread that sends the rings of this process."""

    def __init__(self) -> None:
        self._pending: dict[int, bool] = {}
        """Run id -> whether only what flows through it rang."""
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self.at_rest = threading.Event()
        """Nothing rang that was not sent or dropped."""
        self.at_rest.set()
        threading.Thread(target=self._run, name="bell", daemon=True).start()

    def ring(self, run_id: int, *, is_flow: bool = False) -> None:
        with self._lock:
            self._pending[run_id] = is_flow and self._pending.get(run_id, True)
            self.at_rest.clear()
        self._wake.set()

    def _run(self) -> None:
        # The thread waits by itself, not in an executor of the loop: the interpreter joins those when it ends.
        loop = asyncio.new_event_loop()
        quiet = False
        while True:
            self._wake.wait()
            self._wake.clear()
            with self._lock:
                rang, self._pending = self._pending, {}
            try:
                loop.run_until_complete(_send(_by_key(rang)))
                quiet = False
            except Exception as error:  # noqa: BLE001 - a bell that fails must never touch its caller
                if not quiet:
                    log.warning("the bell is silent (%s); pages and workers fall back to polling", _named(error))
                quiet = True
            with self._lock:
                if not self._pending:
                    self.at_rest.set()
            time.sleep(INTERVAL_S)


async def _send(rang: dict[str, bool]) -> None:
    layer = get_channel_layer()
    async with asyncio.timeout(SEND_DEADLINE_S):
        for key, is_flow in rang.items():
            for group in (group_of(key), ALL_RUNS, FLOWS if is_flow else CHANGES):
                await layer.group_send(group, {"type": "bell", "run": key})


def _by_key(rang: dict[int, bool]) -> dict[str, bool]:
    try:
        return {key: rang[run_id] for run_id, key in Run.objects.filter(pk__in=rang).values_list("pk", "key")}
    finally:
        connection.close()  # back to the pool: no request ends in this thread that would do it


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


_the_ringer: _Ringer | None = None
ringer_lock = threading.Lock()
"""Held while the ringer of this process is made."""


def ringer() -> _Ringer:
    """The ringer of this process."""
    global _the_ringer
    with ringer_lock:
        if _the_ringer is None:
            _the_ringer = _Ringer()
        return _the_ringer


def wait_until_sent(timeout_s: float) -> bool:
    """Wait until what rang in this process has been sent or dropped, and say whether it has.

    For a process that ends: its rings would end with it, and be noticed seconds later by whoever polls.
    """
    return _the_ringer is None or _the_ringer.at_rest.wait(timeout_s)


def _forget_ringer() -> None:
    """A fork has neither the thread nor, perhaps, an owner for the lock: it makes its own."""
    global _the_ringer, ringer_lock
    _the_ringer, ringer_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_ringer)


class Listener:
    """Hears which runs changed: ``async with Listener() as bell: keys = await bell.wait(5.0)``.

    When Redis is down, ``wait`` simply times out: callers poll at their deadline anyway.
    """

    def __init__(self, group: str = ALL_RUNS) -> None:
        self._group = group
        self._layer = get_channel_layer()
        self._channel = ""
        self._hearing: asyncio.Task[dict[str, Any]] | None = None
        """Outlives a ``wait`` that timed out: the layer unsubscribes a channel when a receive on it is cancelled."""

    async def __aenter__(self) -> Self:
        await self._join(SEND_DEADLINE_S)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._hearing is not None:
            self._hearing.cancel()
            await asyncio.wait({self._hearing}, timeout=SEND_DEADLINE_S)
            self._hearing = None
        if self._channel:
            await self._quietly(self._layer.group_discard(self._group, self._channel), SEND_DEADLINE_S)
        self._channel = ""

    async def wait(self, timeout_s: float) -> set[str]:
        """Keys of runs that rang, waiting at most ``timeout_s``; the empty set on timeout."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        if not self._channel:
            await self._join(min(timeout_s, SEND_DEADLINE_S))
        if not self._channel:
            await asyncio.sleep(max(0.0, until - loop.time()))
            return set()
        if self._hearing is None:
            self._hearing = asyncio.create_task(self._layer.receive(self._channel))
        await asyncio.wait({self._hearing}, timeout=max(0.0, until - loop.time()))
        if not self._hearing.done():
            return set()
        heard, self._hearing = self._hearing, None
        try:
            return {heard.result()["run"]}
        except Exception as error:  # noqa: BLE001 - see _Ringer
            log.warning("lost the bell (%s); polling instead", _named(error))
            self._channel = ""
            await asyncio.sleep(max(0.0, until - loop.time()))
            return set()

    async def _join(self, deadline_s: float) -> None:
        async def join() -> None:
            channel = await self._layer.new_channel()
            await self._layer.group_add(self._group, channel)
            self._channel = channel

        await self._quietly(join(), deadline_s)

    async def _quietly(self, act: Coroutine[Any, Any, object], deadline_s: float) -> None:
        # In a task of its own: redis waits with `asyncio.wait_for`, which before Python 3.12 swallows a cancellation
        # that comes together with its result, and then whoever cancelled us would wait for ever.
        task = asyncio.create_task(act)
        try:
            done, _ = await asyncio.wait({task}, timeout=deadline_s)
            error = task.exception() if done else TimeoutError(f"no answer in {deadline_s:.0f} s")
        finally:
            task.cancel()
        if error is not None:
            log.warning("cannot hear the bell (%s); polling instead", _named(error))
