"""The doorbell: "run R changed". It carries no data and may be lost; whoever hears it reads Postgres.

    transition commits -> ring_after_commit -> a thread of this process -> Channels group "runs" and "run.<key>"
                                                                            |              |
                                                                       reconciler       browsers

One daemon thread per process owns the connection to Redis, so that callers never wait for it: with Redis down a ring is
dropped with a log line. Rings of one run are merged while one is on its way, at most one per INTERVAL_S.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer
from django.db import connection, transaction

log = logging.getLogger(__name__)

INTERVAL_S = 0.1
"""Shortest time between two rings of one run from one process."""
SEND_DEADLINE_S = 2.0
ALL_RUNS = "runs"
"""Group that hears every run."""


def group_of(run_key: str) -> str:
    return f"run.{run_key}"


def ring_after_commit(run_id: int) -> None:
    """Ring for a run once the present transaction has committed; at once if there is none."""
    if connection.in_atomic_block:
        hooks = connection.run_on_commit
        if any(getattr(hook[1], "run_id", None) == run_id for hook in hooks):
            return
    hook = _Ring(run_id)
    transaction.on_commit(hook)


class _Ring:
    """An on-commit hook that can be recognised, so that a transaction rings once per run."""

    def __init__(self, run_id: int) -> None:
        self.run_id = run_id

    def __call__(self) -> None:
        _ringer().ring(self.run_id)


class _Ringer:
    """The thread that sends the rings of this process."""

    def __init__(self) -> None:
        self._pending: set[int] = set()
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        # Not a threading.Event: somebody waiting on one in an executor's thread keeps the process from exiting.
        self._wake = asyncio.Event()
        threading.Thread(target=self._run, name="bell", daemon=True).start()

    def ring(self, run_id: int) -> None:
        with self._lock:
            self._pending.add(run_id)
        self._loop.call_soon_threadsafe(self._wake.set)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._send_for_ever())

    async def _send_for_ever(self) -> None:
        layer = get_channel_layer()
        quiet = False
        while True:
            await self._wake.wait()
            self._wake.clear()
            with self._lock:
                run_ids, self._pending = self._pending, set()
            try:
                async with asyncio.timeout(SEND_DEADLINE_S):
                    for key, seq in await sync_to_async(_marks, thread_sensitive=False)(run_ids):
                        message = {"type": "bell", "run": key, "seq": seq}
                        await layer.group_send(group_of(key), message)
                        await layer.group_send(ALL_RUNS, message)
                quiet = False
            except Exception as error:  # noqa: BLE001 - a bell that fails must never touch its caller
                if not quiet:
                    log.warning(
                        "the bell is silent (%s: %s); pages and workers fall back to polling",
                        type(error).__name__,
                        error,
                    )
                quiet = True
            await asyncio.sleep(INTERVAL_S)


def _marks(run_ids: set[int]) -> list[tuple[str, int]]:
    """(key, newest event id) of runs. The event id is the sequence number shown on pages."""
    from rollouts.selectors.events import marks

    return marks(run_ids)


_rings: dict[int, _Ringer] = {}
_rings_lock = threading.Lock()


def _ringer() -> _Ringer:
    """The ringer of this process (a fork gets its own)."""
    with _rings_lock:
        pid = os.getpid()
        if pid not in _rings:
            _rings[pid] = _Ringer()
        return _rings[pid]


class Listener:
    """Hears which runs changed: ``async with Listener() as bell: keys = await bell.wait(5.0)``.

    When Redis is down, ``wait`` simply times out: callers poll at their deadline anyway.
    """

    def __init__(self, group: str = ALL_RUNS) -> None:
        self._group = group
        self._layer = get_channel_layer()
        self._channel = ""

    async def __aenter__(self) -> Self:
        await self._join()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._quietly(lambda: self._layer.group_discard(self._group, self._channel))

    async def _join(self) -> None:
        async def join() -> None:
            self._channel = await self._layer.new_channel()
            await self._layer.group_add(self._group, self._channel)

        self._channel = ""
        await self._quietly(join)

    async def _quietly(self, act: Callable[[], object]) -> None:
        try:
            async with asyncio.timeout(SEND_DEADLINE_S):
                await act()  # type: ignore[misc]
        except Exception as error:  # noqa: BLE001 - see _send_for_ever
            log.warning(
                "cannot hear the bell (%s: %s); polling instead",
                type(error).__name__,
                error,
            )
            self._channel = ""

    async def wait(self, timeout_s: float) -> set[str]:
        """Keys of runs that rang, waiting at most ``timeout_s``; the empty set on timeout."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        if not self._channel:
            await self._join()
        while (left := until - loop.time()) > 0:
            if not self._channel:
                await asyncio.sleep(left)
                break
            try:
                message = await asyncio.wait_for(self._layer.receive(self._channel), left)
                return {message["run"]}
            except TimeoutError:
                break
            except Exception as error:  # noqa: BLE001 - see _send_for_ever
                log.warning(
                    "lost the bell (%s: %s); polling instead",
                    type(error).__name__,
                    error,
                )
                self._channel = ""
        return set()
