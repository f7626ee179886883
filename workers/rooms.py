"""The room of each environment in a driver: the environment itself where it plays inline, else its processes.

    group ──▶ seat ──▶ the least busy process that answers ──▶ play, score
                         │  all blocked, or all busy: one more, up to max_processes
                         │  dead: the next one starts after a pause, twice as long each time
                         │  idle: ended again, down to one
                         '─ answers nothing for timeout_s: ended

A process that crashes, hangs, leaks or floods costs the groups that sit in it, and nobody else anything.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from django.db import DatabaseError, InterfaceError

from environments.env import Environment
from environments.isolated import Isolated
from environments.types import Problem, Split
from rollouts.models import Run
from rollouts.services import environment_sources
from rollouts.services.groups import counts
from trainers.run_config import EnvironmentRef
from workers import isolation
from workers.database import in_database

STARTS_AT_A_TIME = 2
"""Processes of one driver that may be starting: interpreters take a core each for a while."""
log = logging.getLogger(__name__)

_LOOK_S = 1.0
_ANSWER_S = 0.5
SILENT_S = _LOOK_S + 2 * _ANSWER_S
"""A process that answered nothing for so long is blocked."""
_GROUPS_EACH = 8
"""Groups in every process from which on another is worth its memory."""
_IDLE_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0


class _Process:
    """One process of a room."""

    def __init__(self, environment: Isolated) -> None:
        self.environment = environment
        self.groups = 0
        self.answered_at = self.used_at = time.monotonic()

    @property
    def is_blocked(self) -> bool:
        return time.monotonic() - self.answered_at > SILENT_S


class Room:
    """Where the groups of one environment are played. Belongs to one event loop."""

    def __init__(
        self,
        run: Run,
        ref: EnvironmentRef,
        gateway_socket: Path | None = None,
        *,
        starts: asyncio.Semaphore | None = None,
    ) -> None:
        """`starts`: what all rooms of a driver share, so that their processes do not all start at a time."""
        self._run = run
        self._starts = starts or asyncio.Semaphore(STARTS_AT_A_TIME)
        self._ref = ref
        self._gateway_socket = gateway_socket
        self._inline: Environment[Any] | None = None
        self._processes: list[_Process] = []
        self._starting = asyncio.Lock()
        self._growing: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._counts: dict[tuple[str, Split], int] = {}
        """Problems by version and split."""
        self._noted: set[str] = set()
        """Versions whose code is known to be kept."""
        self._deaths = 0
        """In a row."""
        self._not_before = 0.0

    @asynccontextmanager
    async def seat(self) -> AsyncIterator[Environment[Any]]:
        """The environment, for one group. Raises what `isolation.load` does."""
        if not isolation.is_isolated(self._ref):
            environment = await self._load_inline()
            await self._note(str(environment.version))
            yield environment
            return
        process = await self._choose()
        process.groups += 1
        try:
            await self._note(str(process.environment.version))
            yield process.environment
            if process.environment.is_alive:
                self._deaths = 0
        finally:
            process.groups -= 1
            process.used_at = time.monotonic()

    async def problem(self, environment: Environment[Any], split: Split, index: int) -> Problem:
        """Problem `index` of a split, counted around. Raises whatever the environment's code does, and TimeoutError."""
        if not isinstance(environment, Isolated):
            count = await self._count(environment, split)
            return await asyncio.to_thread(environment.problem, split, index % count)
        try:
            count = await self._count(environment, split)
            if count < 1:
                raise ValueError(f"the environment has no problem for {split}")
            return await environment.ask_problem(split, index % count, within_s=self._ref.timeout_s)
        except TimeoutError as late:
            await environment.end(str(late))  # a thread of its own hangs, and others will
            raise

    async def _count(self, environment: Environment[Any], split: Split) -> int:
        known = (str(environment.version), split)
        if known not in self._counts:
            if isinstance(environment, Isolated):
                count = await environment.ask_count(split, within_s=self._ref.timeout_s)
            else:
                count = await asyncio.to_thread(environment.count, split)
            try:
                await in_database(counts.note, self._run, self._ref, split, count)
            except (DatabaseError, InterfaceError) as error:
                log.info("run %s: problems of %s are counted again (%s)", self._run.key, self._ref.run_name, error)
                return count
            self._counts[known] = count
        return self._counts[known]

    async def aclose(self) -> None:
        """End every process."""
        tasks = [task for task in (self._keeper, self._growing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(isolation.close(process.environment) for process in self._processes))
        self._processes = []

    async def _note(self, version: str) -> None:
        """Keep the code of a version that is played. Nothing rests on it."""
        if version in self._noted:
            return
        self._noted.add(version)
        try:
            await in_database(environment_sources.note, self._ref.name, version)
        except (DatabaseError, InterfaceError) as error:
            self._noted.discard(version)
            log.info("run %s: the code of %s is not kept (%s)", self._run.key, self._ref.run_name, error)

    async def _load_inline(self) -> Environment[Any]:
        if self._inline is not None:
            return self._inline
        async with self._starting:
            if self._inline is None:
                self._inline = await isolation.load(self._run, self._ref)
            return self._inline

    async def _choose(self) -> _Process:
        async with self._starting:
            await self._bury()
            free = [each for each in self._processes if not each.is_blocked]
            is_full = len(self._processes) >= self._ref.max_processes
            if not free and not is_full:
                return await self._start()
        chosen = min(free or self._processes, key=lambda each: each.groups)
        if chosen.groups >= _GROUPS_EACH and not is_full and (self._growing is None or self._growing.done()):
            self._growing = asyncio.create_task(self._grow())
        return chosen

    async def _grow(self) -> None:
        async with self._starting:
            if len(self._processes) < self._ref.max_processes:
                try:
                    await self._start()
                except Exception as error:  # noqa: BLE001 - those that run go on without it
                    log.info("run %s: no further process of %s: %s", self._run.key, self._ref.run_name, error)

    async def _start(self) -> _Process:
        """One more process, once the pause after the last death is over."""
        await asyncio.sleep(max(0.0, self._not_before - time.monotonic()))
        try:
            async with self._starts:
                environment = await isolation.load(self._run, self._ref, self._gateway_socket)
        except BaseException:
            self._note_death()
            raise
        assert isinstance(environment, Isolated)
        process = _Process(environment)
        self._processes.append(process)
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep())
        return process

    def _note_death(self) -> None:
        self._not_before = time.monotonic() + min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**self._deaths)
        self._deaths = min(self._deaths + 1, 30)

    async def _bury(self) -> None:
        """Forget processes that are gone."""
        for process in [each for each in self._processes if not each.environment.is_alive]:
            self._processes.remove(process)
            self._note_death()
            await isolation.close(process.environment)

    async def _keep(self) -> None:
        """Look who answers, end who does not, and who is not needed."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await asyncio.gather(*(self._look(process) for process in self._processes))
            idle = [each for each in self._processes if not each.groups and time.monotonic() - each.used_at > _IDLE_S]
            for process in idle:
                # While the one before was waited for, groups came and processes went.
                if not process.groups and process in self._processes and len(self._processes) > 1:
                    self._processes.remove(process)
                    await isolation.close(process.environment)

    async def _look(self, process: _Process) -> None:
        if await process.environment.answers(_ANSWER_S):
            process.answered_at = time.monotonic()
        elif (silent_s := time.monotonic() - process.answered_at) > self._ref.timeout_s:
            await process.environment.end(f"it answered nothing for {silent_s:.0f} s: its code blocks the process")
