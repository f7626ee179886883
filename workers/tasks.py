"""Celery's entry points. A message is a doorbell: it carries ids only and may be lost, doubled or late."""

import asyncio
import logging
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from celery import shared_task
from celery.bootsteps import StartStopStep
from celery.signals import worker_shutdown, worker_shutting_down
from django.db import DatabaseError, InterfaceError

from rollouts.models import Evaluation, Run, RunKind
from rollouts.selectors import trials
from rollouts.states import RUN_GENERATING, EvaluationState
from workers.counting import count_versions
from workers.database import with_connection
from workers.episodes import BUDGET_S, Driver
from workers.remote import UNTIL_VARIABLE

log = logging.getLogger(__name__)

HEARTBEAT_TIMEOUT_S = 60.0
"""A driver without a heartbeat for so long (an environment blocks its loop) loses the lock on its run."""
_RING_EXPIRES_S = 10
POLL_EVERY_S = 10.0
"""Between a worker's own queries for runs without a driver, should messages be lost."""
_SHUTDOWN_TIMEOUT_S = 5.0
"""For drivers to release their leases when the worker shuts down."""

_shutting_down = mmap.mmap(-1, 1)
"""One byte that forked pool processes share with the worker that gets the signal."""
_draining = threading.Event()
"""This worker begins nothing more, and ends once what it plays is settled."""
_driving: set[Driver] = set()
_found: dict[int, threading.Thread] = {}
"""Threads of drivers that polling started, by run."""


class _DriverLock:
    """Mutual exclusion of the drivers of one run within this process; lost when the heartbeat stops."""

    _held: ClassVar[dict[int, "_DriverLock"]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, run_id: int) -> None:
        self._run_id = run_id
        self.heartbeat()

    def heartbeat(self) -> None:
        self._heartbeat_at = time.monotonic()

    def is_held(self) -> bool:
        other = self._held.get(self._run_id)
        return other is not None and time.monotonic() - other._heartbeat_at < HEARTBEAT_TIMEOUT_S

    def acquire(self) -> bool:
        with self._lock:
            if self.is_held():
                return False
            self._held[self._run_id] = self
            return True

    def release(self) -> None:
        with self._lock:
            if self._held.get(self._run_id) is self:
                del self._held[self._run_id]


@worker_shutting_down.connect
def _end_drivers(**_signal: Any) -> None:
    """Tell drivers to release their leases: a warm shutdown waits for them."""
    _shutting_down[0] = 1


@worker_shutdown.connect
def _wait_for_drivers(**_signal: Any) -> None:
    """Join the drivers that this worker started itself; Celery joins those that are tasks."""
    expires = time.monotonic() + _SHUTDOWN_TIMEOUT_S
    for driver in list(_found.values()):
        driver.join(max(0.0, expires - time.monotonic()))


class Polling(StartStopStep):
    """Polls the database for runs to drive, should no message arrive: Redis may be away for long. And for
    versions of datasets to count, of which no message tells.

    A step of the worker, for these begin once it heeds SIGTERM and before it has a broker.
    """

    def start(self, parent: Any) -> None:
        """Begin, each in a thread."""
        signal.signal(signal.SIGUSR2, lambda _signum, _frame: _draining.set())
        threading.Thread(target=poll_runs, name="poll-runs", daemon=True).start()
        threading.Thread(target=partial(count_versions, _is_ending), name="count-datasets", daemon=True).start()


def _is_ending() -> bool:
    return bool(_shutting_down[0])


def poll_runs(pause_s: float = POLL_EVERY_S, *, stopping: Callable[[], bool] = _is_ending) -> None:
    """Drive every run that wants it and is not driven by this process, each in a thread, until told to stop. One that
    drains is told so here, once it drives none."""
    while not stopping():
        if _draining.is_set() and not _driving:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        try:
            for run_id in with_connection(_wanting):
                if not _DriverLock(run_id).is_held():
                    _found[run_id] = threading.Thread(target=drive, args=(run_id,), name=f"drive-{run_id}", daemon=True)
                    _found[run_id].start()
        except (DatabaseError, InterfaceError) as error:
            log.warning("cannot look for runs (%s); trying again", str(error).strip())
        time.sleep(pause_s)


def _wanting() -> list[int]:
    return [run.pk for run in Run.objects.filter(state__in=RUN_GENERATING) if wants_driver(run)]


@shared_task(name="workers.drive_episodes", acks_late=True, ignore_result=True)
def drive_episodes(run_id: int, **_newer: Any) -> None:
    """Play groups of a run for some minutes, unless a driver of this process is at it."""
    drive(run_id)


def drive(run_id: int) -> None:
    """Run a driver for the run in this thread, unless one of this process holds its lock. Needs no broker."""
    lock = _DriverLock(run_id)
    if not lock.acquire():
        return
    try:
        run = with_connection(Run.objects.filter(pk=run_id).first)
        if run is None or _draining.is_set() or not wants_driver(run):
            return
        if (budget_s := claiming_s(run, time.time())) <= 0:
            return

        def hand_over() -> None:
            lock.release()
            # In a thread: the broker may be away, and groups are still in flight on this loop.
            threading.Thread(target=_ring_quietly, args=[run_id], daemon=True).start()

        driver = Driver(
            run,
            stopping=lambda: bool(_shutting_down[0]),
            draining=_draining.is_set,
            handed_over=hand_over,
            heartbeat=lock.heartbeat,
            budget_s=budget_s,
        )
        _driving.add(driver)
        try:
            asyncio.run(driver.drive())
        finally:
            _driving.discard(driver)
    finally:
        lock.release()


def claiming_s(run: Run, now: float) -> float:
    """Seconds for which this worker may begin groups of a run: none that may not end before its time is over."""
    until = float(os.environ.get(UNTIL_VARIABLE, "inf"))
    return min(BUDGET_S, until - now - may_take_s(run))


def may_take_s(run: Run) -> float:
    """Seconds in which a group of any of the run's environments has ended for certain."""
    return max((each.timeout_s for each in run.parsed.environments), default=0.0)


def wants_driver(run: Run) -> bool:
    """Whether groups of this run are played by us and may be claimed; of a supervised run, while it is evaluated or
    somebody tries an environment with it."""
    config = run.parsed
    if not config.is_played or run.state not in RUN_GENERATING or not config.has_players:
        return False
    if run.kind == RunKind.RL or Evaluation.objects.filter(run=run, state=EvaluationState.PLAYING).exists():
        return True
    return trials.are_open(run)


def ring(run_id: int) -> None:
    """Send the message that asks for a driver; it expires after _RING_EXPIRES_S. Raises what the broker raises."""
    drive_episodes.apply_async(args=(run_id,), queue="episodes", expires=_RING_EXPIRES_S, retry=False)


def _ring_quietly(run_id: int) -> None:
    try:
        if not _shutting_down[0]:
            ring(run_id)
    except Exception as error:  # noqa: BLE001 - the reconciler rings again
        log.info("cannot ring for run %s (%s); the reconciler will", run_id, error)
