"""Plays groups through the real process of an isolated environment, in the virtual environment of the games."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from environments.config import SamplingParams
from environments.fakes import ScriptedPolicy
from environments.isolated import Isolated
from environments.runner import play_group
from environments.types import PlayedRollout, Problem, Split

T = TypeVar("T")

HERE = Path(__file__).parent
PATIENT = SamplingParams(max_turns=50)


class Played(NamedTuple):
    """A group, and what it was about."""

    problem: Problem
    rollouts: list[PlayedRollout]
    version: str


class Games:
    """Bridges whose libraries are installed apart from ours: a process for each, which plays one after another."""

    def __init__(self, runner: asyncio.Runner, python: Path, directory: Path) -> None:
        self._runner = runner
        self._python = python
        self._directory = directory
        self._processes: dict[str, Isolated] = {}

    def close(self) -> None:
        """End the processes."""
        for environment in self._processes.values():
            self._runner.run(environment.aclose())

    def play(
        self,
        name: str,
        args: dict[str, Any],
        replies: Sequence[str | Exception],
        *,
        n: int = 1,
        index: int = 0,
        split: Split = Split.TRAIN,
        sampling: SamplingParams = PATIENT,
    ) -> Played:
        """A group of one problem. Of several episodes, the first is the first to ask for each of its replies."""

        async def act(environment: Isolated) -> Played:
            problem = await asyncio.to_thread(environment.problem, split, index)
            policy = ScriptedPolicy(replies)
            rollouts = await play_group(environment, problem, policy, sampling, n, deadline_s=30)
            return Played(problem, rollouts, environment.version)

        return self._with(name, args, act)

    def problems(self, name: str, args: dict[str, Any], indices: Sequence[int], split: Split) -> list[Problem]:
        """Problems of a split."""

        async def act(environment: Isolated) -> list[Problem]:
            return [await asyncio.to_thread(environment.problem, split, index) for index in indices]

        return self._with(name, args, act)

    def load(self, name: str, args: dict[str, Any]) -> None:
        """Make it, which raises what it says against that."""

        async def act(environment: Isolated) -> None:
            return None

        self._with(name, args, act)

    def _with(self, name: str, args: dict[str, Any], act: Callable[[Isolated], Awaitable[T]]) -> T:
        async def whole() -> T:
            if name not in self._processes:
                self._processes[name] = await self._start(name)
            await self._processes[name].load(args)
            return await act(self._processes[name])

        return self._runner.run(asyncio.wait_for(whole(), 60))

    async def _start(self, name: str) -> Isolated:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *(str(self._python), "-m", "environments.isolated.host"),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=self._directory,
            env=os.environ | {"PYTHONPATH": str(HERE)},  # the modules beside this one, and nothing of ours
        )
        return Isolated(name, process)


def told(rollout: PlayedRollout) -> list[str]:
    """What the environment said, in order."""
    assert rollout.error is None, rollout.error
    return [message.text for message in rollout.messages if message.role == "user"]
