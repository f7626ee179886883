"""Where a driver plays each environment of its run, and how many of its groups at a time.

A driver has so many slots, each for as many episodes as `sampling.group_size` says. A group of an environment that has
fewer takes a part of one, and none takes more. An environment that fails gives its own up and has one beside them:
groups that hang in it then keep nobody else waiting.
"""

import asyncio
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from environments.types import Claim
from rollouts.models import Run
from rollouts.selectors import groups
from workers.database import in_database
from workers.rooms import STARTS_AT_A_TIME, Room
from workers.windows import ALONE_PAUSE_S, AMONG_OTHERS_PAUSE_S, Window

_FIRST_GROUPS = 2
"""Of an environment beside others that nothing is known of, at least."""


class Place(NamedTuple):
    """Of one environment."""

    room: Room
    window: Window
    timeout_s: float


class Vacancies(NamedTuple):
    """How many groups may begin: altogether, and of each environment."""

    limit: int
    rooms: dict[str, int]


class Places:
    """Of one driver, by the names of environments."""

    def __init__(self, run: Run, gateway_socket: Path) -> None:
        self._run = run
        self._gateway_socket = gateway_socket
        self._slots = run.parsed.workers.concurrency
        self._places: dict[str, Place] = {}

    def __getitem__(self, environment: str) -> Place:
        return self._places[environment]

    def share(self, claim: Claim) -> Fraction:
        """Of a slot, for a group: an evaluation's may have few rollouts, and must not leave the servers idle."""
        return min(Fraction(1), Fraction(claim.group_size, self._run.parsed.sampling.group_size))

    @property
    def in_a_slot(self) -> int:
        """Evaluated problems that are begun in place of a training group."""
        plan, size = self._run.parsed.evaluation, self._run.parsed.sampling.group_size
        return max(1, size // plan.rollouts_per_problem) if plan else 1

    async def open(self) -> None:
        """Make them. An environment whose last group failed, maybe in another driver, begins with one."""
        failing = await in_database(groups.failing_environments, self._run)
        starts, refs = asyncio.Semaphore(STARTS_AT_A_TIME), self._run.parsed.environments
        pause_s = ALONE_PAUSE_S if len(refs) == 1 else AMONG_OTHERS_PAUSE_S
        first = self._slots if len(refs) == 1 else max(_FIRST_GROUPS, self._slots // len(refs))
        for ref in refs:
            window = Window(self._slots, first=1 if ref.run_name in failing else first, longest_pause_s=pause_s)
            room = Room(self._run, ref, self._gateway_socket, starts=starts)
            self._places[ref.run_name] = Place(room, window, ref.timeout_s)

    def vacancies(self) -> Vacancies:
        """How many groups may begin now."""
        failing = {name for name, place in self._places.items() if place.window.is_failing}
        taken = sum(place.window.playing for name, place in self._places.items() if name not in failing)
        free = max(0, int(self._slots - taken))
        rooms = {name: place.window.room() for name, place in self._places.items()}
        beside = sum(rooms[name] for name in failing)
        return Vacancies(beside + min(free, sum(rooms.values()) - beside), rooms)

    async def aclose(self) -> None:
        """End every process."""
        await asyncio.gather(*(place.room.aclose() for place in self._places.values()))
