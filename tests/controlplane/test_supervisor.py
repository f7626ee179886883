"""The supervisor of `rollyard up` when a process cannot even be started."""

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.up.console import Console
from controlplane.up.processes import Program
from controlplane.up.supervisor import Service, StartError, Supervisor
from tests.patience import PATIENCE

IDLE = Program("idle", (sys.executable, "-c", "import signal; signal.pause()"))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10 * PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_service_that_cannot_be_started_again_is_tried_until_it_can(tmp_path: Path) -> None:
    directory, log = tmp_path / "home", tmp_path / "up.log"
    directory.mkdir()

    async def scenario() -> None:
        supervisor = Supervisor("up", os.environ, directory, Console(log, quiet=True, as_json=False))
        await supervisor.keep(Service("idle", lambda: IDLE))
        [first] = supervisor.pids
        directory.rename(tmp_path / "away")
        os.kill(first, signal.SIGKILL)
        await until(lambda: log.read_text().count("cannot start: ") == 2)
        (tmp_path / "away").rename(directory)
        await until(lambda: bool(supervisor.pids))
        await supervisor.stop()

    asyncio.run(scenario())


def test_a_service_that_cannot_be_started_at_all_ends_the_start_with_the_reason(tmp_path: Path) -> None:
    supervisor = Supervisor(
        "up", os.environ, tmp_path / "nowhere", Console(tmp_path / "up.log", quiet=True, as_json=False)
    )
    with pytest.raises(StartError, match="idle: "):
        asyncio.run(supervisor.keep(Service("idle", lambda: IDLE)))


def test_a_program_that_cannot_be_started_is_an_end_of_the_start_with_what_to_do(tmp_path: Path) -> None:
    supervisor = Supervisor("up", os.environ, tmp_path, Console(tmp_path / "up.log", quiet=True, as_json=False))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def without_a_descriptor() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
        try:
            await supervisor.run(IDLE)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    with pytest.raises(StartError, match=r"idle: Too many open files: .*ulimit -n"):
        asyncio.run(without_a_descriptor())


def test_a_service_that_recovers_is_waited_for_beyond_its_deadline_as_long_as_it_says_so(tmp_path: Path) -> None:
    log, asked = tmp_path / "up.log", 0

    def is_coming() -> bool:
        nonlocal asked
        asked += 1
        return asked < 3

    async def kept(*, answers_after: int) -> None:
        supervisor = Supervisor("up", os.environ, tmp_path, Console(log, quiet=True, as_json=False))

        def answers() -> bool:
            return asked >= answers_after

        try:
            await supervisor.keep(Service("idle", lambda: IDLE, answers, ready_deadline_s=0.2, is_coming=is_coming))
        finally:
            await supervisor.stop()

    asyncio.run(kept(answers_after=2))
    assert "recovers from an unclean end" in log.read_text()
    with pytest.raises(StartError, match="does not answer"):
        asyncio.run(kept(answers_after=99))
