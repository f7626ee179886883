"""The room of an environment: as many processes as it needs, another for one that is gone, none for one that blocks."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from environments.isolated import Isolated
from environments.types import Message, Problem, Split
from rollouts.models import Run
from tests.workers import bad_environments
from tests.workers.making import make_run
from trainers.run_config import EnvironmentRef
from workers import rooms
from workers.launchers import confinement
from workers.rooms import Room

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(confinement.complaint()), reason=f"NO SANDBOX, rooms are not opened: {confinement.complaint()}"
    ),
]


@pytest.fixture
def run(tmp_path: Path, settings: Any, bad_packages: None) -> Run:
    settings.ROLLYARD_RUNS_DIR = tmp_path / "runs"
    return make_run()


def in_room(run: Run, kind: str, act: Callable[[Room], Awaitable[None]], **limits: Any) -> None:
    ref = EnvironmentRef(name=bad_environments.place(kind), args={"kind": kind}, **limits)

    async def main() -> None:
        room = Room(run, ref)
        try:
            await act(room)
        finally:
            await room.aclose()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_groups_share_a_process_and_a_dead_one_is_replaced(run: Run) -> None:
    async def act(room: Room) -> None:
        async with room.seat() as first, room.seat() as second:
            assert first is second
            assert isinstance(first, Isolated)
            assert (await room.problem(first, Split.TRAIN, 1_001)).key == "train-1", "counted around"
            os.kill(first.pid, signal.SIGKILL)
            while first.is_alive:
                await asyncio.sleep(0.01)
        async with room.seat() as third:
            assert third is not first
            assert (await room.problem(third, Split.EVAL, 0)).key == "eval-0"

    in_room(run, "fine", act)


def test_a_blocked_process_keeps_nobody_waiting_and_is_ended(run: Run) -> None:
    async def act(room: Room) -> None:
        async with room.seat() as blocked:
            assert isinstance(blocked, Isolated)
            problem = await room.problem(blocked, Split.TRAIN, 0)
            state = await blocked.start(problem)
            hanging = asyncio.create_task(blocked.step(state, Message("assistant", "x")))
            while await blocked.answers(0.2):
                await asyncio.sleep(0)
            await asyncio.sleep(rooms.SILENT_S)
            async with room.seat() as other:
                assert other is not blocked, "it sits in a second process"
                assert (await room.problem(other, Split.TRAIN, 1)).key == "train-1"
            error = (await asyncio.gather(hanging, return_exceptions=True))[0]
            assert "its code blocks the process" in str(error)

    in_room(run, "blocks", act, timeout_s=3.0, max_processes=2)


def test_many_groups_get_more_processes_up_to_the_limit(run: Run) -> None:
    async def act(room: Room) -> None:
        async def sit(until: asyncio.Event, seen: set[int]) -> None:
            async with room.seat() as environment:
                assert isinstance(environment, Isolated)
                seen.add(environment.pid)
                await until.wait()

        over, seen = asyncio.Event(), set[int]()
        sitting = [asyncio.create_task(sit(over, seen)) for _ in range(12)]
        while len(seen) < 1:
            await asyncio.sleep(0.01)
        while len(seen) < 2:
            sitting.append(asyncio.create_task(sit(over, seen)))
            await asyncio.sleep(0.1)
        over.set()
        await asyncio.gather(*sitting)
        assert len(seen) == 2

    in_room(run, "fine", act, max_processes=2)


def test_a_process_that_is_given_a_group_while_idle_ones_are_ended_stays(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seated, ended = [], []

    async def act(room: Room) -> None:
        idle = [AsyncMock(Isolated, is_alive=True, version="1", number=number) for number in range(4)]
        room._processes = [rooms._Process(each) for each in idle]
        over = asyncio.Event()

        async def sit() -> None:
            async with room.seat() as environment:
                seated.append(environment)
                await over.wait()

        async def close(environment: Any) -> None:
            """Takes long enough for a group to come."""
            if not ended:
                sitting.append(asyncio.create_task(sit()))
                while not seated:
                    await asyncio.sleep(0)
            ended.append(environment)

        sitting: list[asyncio.Task[None]] = []
        monkeypatch.setattr(rooms, "_LOOK_S", 0.01)
        monkeypatch.setattr(rooms, "_IDLE_S", 0.0)
        monkeypatch.setattr(rooms.isolation, "close", close)
        keeping = asyncio.create_task(room._keep())
        while len(room._processes) > 1:
            await asyncio.sleep(0.01)
        keeping.cancel()
        assert len(ended) == 3
        assert [each.environment for each in room._processes] == seated
        over.set()
        await asyncio.gather(*sitting)

    in_room(run, "fine", act)


def test_a_problem_that_hangs_ends_its_process(run: Run) -> None:
    async def act(room: Room) -> None:
        async with room.seat() as environment:
            with pytest.raises(TimeoutError, match="did not answer within 1 s"):
                await room.problem(environment, Split.TRAIN, 0)
            assert isinstance(environment, Isolated)
            assert not environment.is_alive

    in_room(run, "hangs in problem", act, timeout_s=1.0)


def test_code_of_the_policy_runs_in_a_sandbox_beside_the_room(run: Run) -> None:
    async def act(room: Room) -> None:
        async with room.seat() as environment:
            state = await environment.start(await room.problem(environment, Split.TRAIN, 0))
            code = "import os; print(6 * 7, os.listdir('.'))"
            assert await environment.step(state, Message("assistant", code)) == [Message("user", "42 ['main.py']\n")]
            slow = asyncio.create_task(environment.step(state, Message("assistant", "import time; time.sleep(60)")))
            await asyncio.sleep(0.5)
            slow.cancel()
            with pytest.raises(asyncio.CancelledError):
                await slow
            assert isinstance(environment, Isolated)
            assert await environment.answers(5), "who gives up waiting leaves nothing behind"

    in_room(run, "runs code", act)


def test_what_ships_with_us_plays_inline_unless_told_otherwise(run: Run) -> None:
    async def act(**more: Any) -> tuple[bool, Problem]:
        room = Room(run, EnvironmentRef(name="reverse_text", **more))
        try:
            async with room.seat() as environment:
                return isinstance(environment, Isolated), await room.problem(environment, Split.TRAIN, 0)
        finally:
            await room.aclose()

    inline, isolated = asyncio.run(act()), asyncio.run(act(process="isolated"))
    assert (inline[0], isolated[0]) == (False, True)
    assert inline[1] == isolated[1]
