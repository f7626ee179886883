"""What the agent of a job does on its node, without SLURM: it holds a replica until that has ended."""

import asyncio
import errno
import json
import os
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.workers.test_launchers import POLITE
from tests.workers.waiting import eventually
from workers.agent import Agent
from workers.launchers.base import JOB_VARIABLE, LaunchSpec
from workers.launchers.local import LocalLauncher
from workers.launchers.processes import carriers
from workers.slurm.launcher import _described
from workers.slurm.templates import Template

pytestmark = pytest.mark.slow


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """Of a command that ends as it is asked to."""
    token, directory = str(uuid.uuid4()), tmp_path / "replica"
    directory.mkdir()
    spec = LaunchSpec(token, directory, [sys.executable, "-c", POLITE], grace_s=10.0, url="http://127.0.0.1:9")
    secrets = {"job": _described(spec, Template()), "environ": {}, "key": token}
    monkeypatch.setenv(JOB_VARIABLE, json.dumps(secrets))
    yield Agent(directory, "", 0)
    LocalLauncher().sweep(token, 0)
    eventually(lambda: not carriers(token))


def is_up(directory: Path) -> bool:
    """Whether the command is, which else dies of being asked to end."""
    return "up" in (directory / "log.txt").read_text()


def test_a_home_that_is_away_for_a_while_ends_no_command(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stop, exists, poll = tmp_path / "replica" / "stop", Path.exists, LocalLauncher.poll
    looks: list[str] = []

    def away(real: Any) -> Any:
        def look(*args: Any) -> Any:
            if stop in args or real is poll:
                looks.append(real.__name__)
                if looks.count(real.__name__) <= 3:
                    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
                if looks.count("exists") > 3 and is_up(stop.parent):
                    stop.touch()
            return real(*args)

        return look

    monkeypatch.setattr(Path, "exists", away(exists))
    monkeypatch.setattr(LocalLauncher, "poll", away(poll))
    assert asyncio.run(agent.run()) == 0
    end = json.loads((tmp_path / "replica" / "exit.json").read_text())
    assert (end["code"], end["end"]) == (0, "asked"), "by the file, not by the end of its agent"
    assert looks.count("exists") > 3
    assert caplog.text.count("the replica goes on all the same: [Errno 116] Stale file handle") == 1


def test_while_a_home_hangs_the_doors_of_a_job_do_not(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, exists = tmp_path / "replica" / "stop", Path.exists
    hangs, answers = threading.Event(), threading.Event()

    def hang(path: Path) -> bool:
        if path == stop:
            hangs.set()
            assert answers.wait(20), "nothing else was done meanwhile"
            eventually(lambda: is_up(stop.parent))
            stop.touch()
        return exists(path)

    async def serve() -> None:
        while not hangs.is_set():
            await asyncio.sleep(0.01)
        answers.set()

    async def both() -> int:
        return (await asyncio.gather(agent.run(), serve()))[0]

    monkeypatch.setattr(Path, "exists", hang)
    assert asyncio.run(both()) == 0
