"""The loop that makes processes match rows: one leader, every active run each few seconds, sooner when the bell rings.

    bell: what changed or is waited for, at once ────────┐
    bell: what flowed, and servers that start: LATER_S ──┼─▶ one thread per run: convergence.converge ──▶ a driver is
    every INTERVAL_S: all ───────────────────────────────┘                                                rung for

Waits for the leadership (unblocked by the death of the leader), the bell or the interval. Converging a run that takes
long holds up no other. Whatever it is doing, it may be killed: the next one starts from the rows.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

import psycopg
from django.db import DatabaseError, InterfaceError

from rollouts import bell
from rollouts.models import Run
from rollouts.reasons import Reason, ReasonCode
from rollouts.selectors import fleet, runs
from rollouts.services.runs import policies, trials
from rollouts.states import RunState
from workers import tasks
from workers.convergence import Convergence
from workers.database import in_database, with_connection
from workers.fleet import lifecycle
from workers.leadership import Leadership
from workers.worker_pools import WorkerPools

log = logging.getLogger(__name__)

INTERVAL_S = 5.0
STANDBY_S = 2.0
SWEEP_EVERY_S = 30.0
RING_EVERY_S = 30.0
"""A ring is for a driver that is missing; workers also look by themselves (`tasks.poll_runs`)."""
LATER_S = 2.0
"""From a group, a batch or a metric to a pass over its run: they come all the time, and a pass takes some thirty
milliseconds of the interpreter that all runs share. And from one pass to the next while a server starts."""
_SHORTEST_GAP_S = 0.25
"""Between two passes over one run, however often the bell rings."""
_CHECK_DEADLINE_S = 10.0
_MAX_THREADS = 64
_MAX_ENDING = 8


class _Found(NamedTuple):
    """What a run still needs after a pass."""

    wants_driver: bool
    has_starting: bool
    waits_for_groups: bool


class Reconciler:
    """Reconciles all active runs while it holds the leader lock, until `stop` is called."""

    def __init__(
        self,
        *,
        interval_s: float = INTERVAL_S,
        converge: Callable[[int], None] | None = None,
        ring: Callable[[int], None] = tasks.ring,
    ) -> None:
        self._interval_s = interval_s
        self._converge = converge or Convergence().converge
        self._ring = ring
        self.threads = ThreadPoolExecutor(max_workers=_MAX_THREADS, thread_name_prefix="converge")
        """Where passes over runs are made. Those in progress when `run` returns may be abandoned or waited for."""
        self.ending = ThreadPoolExecutor(max_workers=_MAX_ENDING, thread_name_prefix="end")
        """Where passes over runs that are to stop are cut short: those may have taken all the other threads."""
        self._ringing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ring")
        self._leadership = Leadership()
        self._leads = False
        self._stopping = asyncio.Event()
        self._looks: dict[int, asyncio.Task[None]] = {}
        self._again: set[int] = set()
        self._later: set[int] = set()
        """Runs with a pass that is still to come."""
        self._eager: set[int] = set()
        """Runs in which something waits for groups: what flows through them is looked at at once."""
        self._cut_short: set[int] = set()
        """Runs that were to stop at the last look: a pass that was in progress then has been cut short."""
        self._keys: dict[str, int] = {}
        self._rang_at: dict[int, float] = {}
        self._swept_at = -SWEEP_EVERY_S
        self._pools = WorkerPools()
        self._keeping: asyncio.Future[None] | None = None

    def stop(self) -> None:
        """End the loop; passes in progress are not waited for."""
        self._stopping.set()

    async def run(self) -> None:
        """Acquire the leader lock, reconcile while it is held, and try again when it is lost."""
        standing_by = False
        while not self._stopping.is_set():
            try:
                leads = await asyncio.to_thread(self._leadership.acquire)
            except psycopg.Error as error:
                log.warning("cannot reach the database (%s); trying again", str(error).strip())
                leads = False
            if leads:
                log.info("leading")
                await self._lead()
            elif not standing_by:
                log.info("standing by")
            standing_by = not leads
            await self._pause(STANDBY_S)
        self._leadership.release()
        self.threads.shutdown(wait=False, cancel_futures=True)
        self.ending.shutdown(wait=False, cancel_futures=True)
        self._ringing.shutdown(wait=False, cancel_futures=True)

    async def _lead(self) -> None:
        self._leads = True
        hearing = asyncio.gather(self._hear(bell.CHANGES, self._look_soon), self._hear(bell.FLOWS, self._look_at_flow))
        try:
            while not self._stopping.is_set():
                if not await self._still_leads():
                    log.warning("lost the leadership")
                    return
                try:
                    await self._look_at_all()
                except (DatabaseError, InterfaceError) as error:
                    log.warning("cannot list the runs (%s); trying again", str(error).strip())
                await self._pause(self._interval_s)
        finally:
            self._leads = False
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)

    async def _still_leads(self) -> bool:
        try:
            return await asyncio.wait_for(asyncio.to_thread(self._leadership.holds), _CHECK_DEADLINE_S)
        except TimeoutError:
            return False

    async def _look_at_all(self) -> None:
        active = await in_database(lambda: list(runs.list_active().values_list("id", "key", "state")))
        self._keys = {key: run_id for run_id, key, _ in active}
        stopping = {run_id for run_id, _, state in active if state == RunState.STOPPING}
        for run_id in (stopping & self._looks.keys()) - self._cut_short:
            self.ending.submit(with_connection, _cut_short, run_id)
        self._cut_short = stopping
        for run_id in self._keys.values():
            self._look_soon(run_id)
        await in_database(trials.fail_overdue)
        loop = asyncio.get_running_loop()
        if time.monotonic() - self._swept_at >= SWEEP_EVERY_S:
            self._swept_at = time.monotonic()
            loop.run_in_executor(self.threads, with_connection, _sweep)
        if self._keeping is None or self._keeping.done():
            self._keeping = loop.run_in_executor(self.threads, with_connection, _keep, self._pools)

    async def _hear(self, group: str, look: Callable[[int], None]) -> None:
        async with bell.Listener(group) as listener:
            while True:
                for key in await listener.wait(self._interval_s):
                    run_id = self._keys.get(key) or await self._find(key)
                    if run_id is not None:
                        look(run_id)

    async def _find(self, key: str) -> int | None:
        with suppress(DatabaseError, InterfaceError):
            return await in_database(Run.objects.filter(key=key).values_list("id", flat=True).first)
        return None

    def _look_soon(self, run_id: int) -> None:
        if run_id in self._looks:
            self._again.add(run_id)
        else:
            self._looks[run_id] = asyncio.create_task(self._look(run_id))

    def _look_at_flow(self, run_id: int) -> None:
        if run_id in self._eager:
            self._look_soon(run_id)
        else:
            self._look_later(run_id)

    def _look_later(self, run_id: int) -> None:
        if run_id not in self._later:
            self._later.add(run_id)
            asyncio.get_running_loop().call_later(LATER_S, self._look_now, run_id)

    def _look_now(self, run_id: int) -> None:
        self._later.discard(run_id)
        self._look_soon(run_id)

    async def _look(self, run_id: int) -> None:
        """Converge a run, and again if it rang meanwhile. There is never more than one pass over a run at a time."""
        loop = asyncio.get_running_loop()
        try:
            while self._leads and not self._stopping.is_set():
                self._again.discard(run_id)
                try:
                    found = await loop.run_in_executor(self.threads, with_connection, self._once, run_id)
                    self._ring_for(run_id, found.wants_driver)
                    if found.has_starting:  # nothing rings when they answer
                        self._look_later(run_id)
                    (self._eager.add if found.waits_for_groups else self._eager.discard)(run_id)
                except (DatabaseError, InterfaceError) as error:
                    log.warning("run %s: %s; trying again", run_id, str(error).strip())
                except Exception:
                    log.exception("run %s: converging it broke; trying again", run_id)
                await self._pause(_SHORTEST_GAP_S)
                if run_id not in self._again:
                    return
        finally:
            del self._looks[run_id]

    def _once(self, run_id: int) -> _Found:
        self._converge(run_id)
        run = Run.objects.get(pk=run_id)
        return _Found(tasks.wants_driver(run), fleet.list_starting(run).exists(), policies.waits_for_groups(run))

    def _ring_for(self, run_id: int, wants_driver: bool) -> None:
        now = time.monotonic()
        if wants_driver and now - self._rang_at.get(run_id, -RING_EVERY_S) >= RING_EVERY_S:
            self._rang_at[run_id] = now
            # In a thread of its own: a broker that hangs must hold up nothing.
            self._ringing.submit(self._ring_quietly, run_id)

    def _ring_quietly(self, run_id: int) -> None:
        try:
            self._ring(run_id)
        except Exception as error:  # noqa: BLE001 - workers also look by themselves
            log.info("cannot ring for run %s: %s", run_id, error)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)


def _cut_short(run_id: int) -> None:
    """End the processes of a run that is to stop, for a pass over it may be waiting for an answer of one of them."""
    try:
        alive = fleet.list_alive(Run.objects.get(pk=run_id))
        lifecycle.end(alive, reason=Reason(ReasonCode.RUN_ENDING, state=RunState.STOPPED.value))
    except Exception:
        log.exception("run %s: ending its processes failed; the next pass over it tries again", run_id)


def _keep(pools: WorkerPools) -> None:
    try:
        pools.keep()
    except (DatabaseError, InterfaceError) as error:
        log.warning("cannot see what there is to play (%s); trying again", str(error).strip())
    except Exception:
        log.exception("keeping the pools of workers failed; trying again")


def _sweep() -> None:
    try:
        lifecycle.end_orphans()
    except (DatabaseError, InterfaceError) as error:
        log.warning("cannot end orphaned processes (%s); trying again", str(error).strip())
    except Exception:
        log.exception("ending orphaned processes failed; trying again")
