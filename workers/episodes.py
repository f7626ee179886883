"""Drive the episodes of one run: claim groups, play them all at once, settle each.

    claim ──▶ play (environments.runner, one task per group) ──▶ settle ──▶ claim again
      ▲                          │
      │            renew every lease_s / 6; a lost lease cancels its task
      └── bell or 1 s ── nothing to claim: generation is as far ahead as it may be; of many drivers each asks less often

Consumes capacity, produces settled groups. Waits for capacity (unblocked by publishing), for the replicas (unblocked by
the reconciler) and for episodes (bounded by each environment's timeout_s). Holds no transaction and no connection while
it waits.
"""

import asyncio
import logging
import os
import random
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from django.db import DatabaseError, InterfaceError

from environments import others, seats
from environments.config import SamplingParams
from environments.env import Environment
from environments.gateway.local import LocalGateway
from environments.runner import play_group
from environments.traffic import Traffic
from environments.types import Claim, ErrorKind, PlayedRollout, Problem, Withheld
from rollouts.bell import Listener, group_of
from rollouts.errors import Invalid, LeaseLost
from rollouts.models import Run
from rollouts.selectors import drivers
from rollouts.services.groups import leases, loads, settling
from rollouts.states import RUN_GENERATING, GroupState
from workers import failures
from workers.counts import Counts
from workers.database import in_database, keeping
from workers.directories import OwnDirectory
from workers.fleet.replica_pool import ReplicaPool
from workers.others import OthersOfRun
from workers.places import Places
from workers.players import Players
from workers.trials import Trials

log = logging.getLogger(__name__)

BUDGET_S = 240.0
"""After this a driver claims no more and hands over, so that no task of the broker lives long."""
SETTLE_BUDGET_S = 120.0
"""Seconds for which settling is retried while Postgres is away; then the lease expires and the group is replayed."""
_POLL_S = 1.0
_LOOK_S = 1.0
_REPORT_S, _LONGEST_REPORT_S = 2.0, 20.0
_REPORTS_PER_S = 50.0
"""Of all drivers of a run together: each rings the bell, which all of them hear."""
_VAIN_CLAIMS_PER_S = 20.0
"""Of all drivers of a run together. Claims of a run wait for each other, and each that finds nothing costs the database
half of one that does: what is free again is begun sooner when they do not all ask at every ring."""
_DATABASE_PAUSE_S = 1.0
_LONGEST_FAILURE_PAUSE_S = 10.0
_DATABASE_ERRORS = (DatabaseError, InterfaceError)


class _Played(NamedTuple):
    """What came of a claim."""

    problem_key: str
    """Empty: no problem could be had."""
    rollouts: list[PlayedRollout]
    environment_version: str = ""


def holder_name() -> str:
    """The holder that leases of this process are recorded under: node, by SLURM's name where there is one, and id."""
    return f"{(os.environ.get('SLURMD_NODENAME') or socket.gethostname())[:60]}:{os.getpid()}"


class Driver:
    """Plays groups of one run until its budget ends, the run is over, or `stopping` says so."""

    def __init__(
        self,
        run: Run,
        *,
        stopping: Callable[[], bool] = lambda: False,
        draining: Callable[[], bool] = lambda: False,
        handed_over: Callable[[], None] = lambda: None,
        heartbeat: Callable[[], None] = lambda: None,
        budget_s: float = BUDGET_S,
        pool: ReplicaPool | None = None,
    ) -> None:
        """`draining`: claim no more. `handed_over` is called once when claiming ends; `heartbeat` every second."""
        self.run = run
        self.holder = holder_name()
        self._config = run.parsed
        self._stopping = stopping
        self._draining = draining
        self._handed_over = handed_over
        self._heartbeat = heartbeat
        self._budget_s = budget_s
        self._pool = pool or ReplicaPool(run)
        self._playing: dict[str, asyncio.Task[None]] = {}
        """Lease token -> task."""
        self._settling: set[str] = set()
        self._sockets = OwnDirectory.temporary("rollyard-driver-", mode=0o755)  # its socket asks for a key
        gateway_socket = self._sockets.path / "gateway.sock"
        self._gateway = LocalGateway(gateway_socket)
        self._traffic = Traffic(self._config.workers.max_tokens_in_flight)
        self._places = Places(run, gateway_socket)
        self._others = OthersOfRun(run)
        self._players = Players(run, self._pool, self._others)
        self._trials = Trials(
            run, self.holder, self._players, self._others, self._traffic, self._gateway, gateway_socket
        )
        self._wake = asyncio.Event()
        self._counts = Counts(run)
        self._drivers = 1
        """Of this run, everywhere, as of the last report."""
        self._over = self._is_handed_over = False
        """Whether the run takes no more work, and whether another driver may have it."""

    async def drive(self) -> None:
        """Claim and play until there is a reason to end; then finish what is in flight, or give it back."""
        keepers: list[asyncio.Task[None]] = []
        try:
            await self._pool.refresh()
            await self._places.open()
            lease_s = self._config.workers.lease_s
            acts = [(lambda: lease_s / 6, self._renew), (lambda: _LOOK_S, self._look), (self._report_s, self._report)]
            keepers += [asyncio.create_task(self._every(*each)) for each in acts]
            keepers.append(asyncio.create_task(self._listen()))
            await self._generate()
            self._is_handed_over = True
            self._handed_over()
            while (self._playing or self._trials.are_playing) and not self._stopping():
                await self._wait()
        finally:
            left = list(self._playing)
            tasks = [*keepers, *self._playing.values()]
            for task in tasks:
                task.cancel()
            with suppress(*_DATABASE_ERRORS):  # first: winding up takes a while, and the process may be killed in it
                if left:
                    await in_database(leases.release, left)
            await asyncio.gather(*tasks, return_exceptions=True)
            self._sockets.remove()
            await self._trials.aclose()
            with suppress(*_DATABASE_ERRORS):
                await self._report()
                await in_database(loads.forget, self.run, holder=self.holder)
            await self._gateway.aclose()
            await self._pool.aclose()
            await self._places.aclose()
            await self._others.aclose()

    async def _generate(self) -> None:
        until = time.monotonic() + self._budget_s
        not_before = 0.0  # after an error of the database, or a claim that got less than it asked for
        while not (self._over or self._stopping() or self._draining()) and time.monotonic() < until:
            vacancies = self._places.vacancies()
            if vacancies.limit > 0 and time.monotonic() >= not_before:
                try:
                    answer = await in_database(
                        leases.claim,
                        self.run,
                        holder=self.holder,
                        limit=vacancies.limit,
                        lease_s=self._config.workers.lease_s,
                        rooms=vacancies.rooms,
                        evaluated_in_a_slot=self._places.in_a_slot,
                    )
                except _DATABASE_ERRORS as error:
                    log.warning("run %s: cannot claim (%s); trying again", self.run.key, error)
                    not_before = time.monotonic() + _DATABASE_PAUSE_S
                else:
                    if answer.reason is Withheld.OVER:
                        return self._drop_all()
                    for claim in answer.claims:
                        self._places[claim.environment].window.playing += self._places.share(claim)
                        self._playing[claim.token] = asyncio.create_task(self._play(claim))
                    is_waiting = answer.reason is Withheld.CAPACITY and not self._playing
                    await self._counts.note_waiting(is_waiting=is_waiting, drivers=self._drivers)
                    if len(answer.claims) < vacancies.limit:
                        not_before = time.monotonic() + random.uniform(0, 2) * self._drivers / _VAIN_CLAIMS_PER_S
            await self._wait(not_before)

    async def _wait(self, not_before: float = 0.0) -> None:
        """Wait until a group ends, the bell rings or a moment has passed; then on until `not_before`, for a moment at
        most."""
        self._heartbeat()
        with suppress(TimeoutError):
            async with asyncio.timeout(_POLL_S):  # `wait_for` may swallow a cancellation before Python 3.12
                await self._wake.wait()
        self._wake.clear()
        if (left_s := not_before - time.monotonic()) > 0:
            await asyncio.sleep(min(_POLL_S, left_s))

    async def _play(self, claim: Claim) -> None:
        try:
            played = await self._rollouts(claim)
            self._settling.add(claim.token)
            await self._settle(claim, played)
        except Exception:
            # Our bug, not the environment's: the lease expires, which counts as a lost lease; the third quarantines it.
            log.exception("run %s: group %s broke its driver", self.run.key, claim.group)
        finally:
            self._settling.discard(claim.token)
            self._playing.pop(claim.token, None)
            self._places[claim.environment].window.playing -= self._places.share(claim)
            self._wake.set()

    async def _rollouts(self, claim: Claim) -> "_Played":
        room = self._places[claim.environment].room
        problem_key = version = ""
        try:
            async with room.seat() as environment:
                version = str(environment.version)
                seats.check(environment, claim.seats)
                problem = await room.problem(environment, claim.split, claim.problem_index)
                problem_key = problem.key
                played = await self._played(claim, environment, problem)
                failures.add_stderr(played, environment)
                return _Played(problem_key, played, version)
        except Exception as error:  # noqa: BLE001 - the boundary to the environment's code: a failure is data
            return _Played(problem_key, failures.failed(claim, error), version)

    async def _played(self, claim: Claim, environment: Environment[Any], problem: Problem) -> list[PlayedRollout]:
        count = partial(self._counts.add, claim.policy_version)
        player = await self._players.find(oldest_version=claim.policy_version, count=count)
        sampling = SamplingParams(
            temperature=claim.temperature,
            max_tokens=claim.max_tokens,
            max_turns=claim.max_turns,
            max_total_tokens=player.context,
        )
        asked = self._others.for_group(claim.group_size, count)
        with others.using(asked):
            rollouts = await play_group(
                environment,
                problem,
                player.policy,
                sampling,
                claim.group_size,
                deadline_s=self._places[claim.environment].timeout_s,
                chat=player.chat,
                gateway=self._gateway,
                version=player.version,
                traffic=self._traffic,
                others=self._players.seated(claim.seats, sampling, asked),
            )
        for rollout in rollouts:
            rollout.replica = player.name()
        return rollouts

    async def _settle(self, claim: Claim, played: "_Played") -> None:
        expires = time.monotonic() + SETTLE_BUDGET_S
        while True:
            try:
                state = await in_database(
                    settling.settle,
                    token=claim.token,
                    problem_key=played.problem_key,
                    rollouts=played.rollouts,
                    worker=self.holder,
                    environment_version=played.environment_version,
                )
            except LeaseLost:
                log.info("run %s: group %s was taken over; its rollouts are dropped", self.run.key, claim.group)
                return
            except Invalid as error:
                if not played.problem_key:
                    raise
                log.warning("run %s: group %s does not hold together: %s", self.run.key, claim.group, error.fields)
                played = _Played("", failures.failed(claim, error), played.environment_version)
            except _DATABASE_ERRORS as error:
                if time.monotonic() > expires:
                    raise
                log.warning("run %s: cannot settle (%s); trying again", self.run.key, error)
                await asyncio.sleep(_DATABASE_PAUSE_S)
            else:
                break
        window = self._places[claim.environment].window
        if state != GroupState.FAILED:
            window.succeeded()
        elif any(rollout.error and rollout.error.kind is not ErrorKind.POLICY for rollout in played.rollouts):
            window.failed()
        self._counts.add_sampled(claim.policy_version, played.rollouts)

    async def _renew(self) -> None:
        tokens = set(self._playing)
        if not tokens:
            return
        held = {str(token) for token in await keeping(leases.renew, tokens, lease_s=self._config.workers.lease_s)}
        for token in tokens - held - self._settling:
            if task := self._playing.get(token):
                log.info("run %s: lost the lease %s; its episodes are dropped", self.run.key, token)
                task.cancel()

    async def _report(self) -> None:
        traffic = self._traffic
        await in_database(
            loads.report,
            self.run,
            holder=self.holder,
            sessions=traffic.sessions,
            queued=traffic.queued,
            asking=traffic.asking,
            scoring=traffic.scoring,
            tokens=traffic.tokens,
            is_draining=self._is_handed_over or self._over,
        )
        self._drivers = max(1, await in_database(drivers.count, self.run))
        await self._counts.report(drivers=self._drivers)

    def _report_s(self) -> float:
        return min(_LONGEST_REPORT_S, max(_REPORT_S, self._drivers / _REPORTS_PER_S))

    async def _listen(self) -> None:
        async with Listener(group_of(self.run.key)) as bell:
            while True:
                if await bell.wait(_POLL_S):
                    self._wake.set()

    async def _every(self, interval_s: Callable[[], float], act: Callable[[], Any]) -> None:
        while True:
            await asyncio.sleep(interval_s())
            try:
                await act()
            except _DATABASE_ERRORS as error:
                log.warning("run %s: %s; trying again", self.run.key, error)

    async def _look(self) -> None:
        """Refresh the replicas, and whether the run is over: a driver at full concurrency makes no claim to tell it."""
        await self._pool.refresh()
        state = await in_database(Run.objects.values_list("state", flat=True).get, pk=self.run.pk)
        if state not in RUN_GENERATING:
            self._drop_all()
        elif not self._is_handed_over:
            await self._trials.look()

    def _drop_all(self) -> None:
        self._over = True
        self._wake.set()
        for token, task in self._playing.items():
            if token not in self._settling:
                task.cancel()
