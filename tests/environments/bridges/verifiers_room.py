"""A process that plays tasksets of verifiers, as a room has one, but without a sandbox; and verifiers by itself."""

import asyncio
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from environments.chat.rendered import RenderedChat
from environments.chat.tokenizer import ChatTokenizer
from environments.config import SamplingParams
from environments.fakes import ScriptedPolicy
from environments.gateway.local import LocalGateway
from environments.isolated import Isolated
from environments.isolated.frames import GATEWAY_SOCKET
from environments.policy import Policy
from environments.runner import play_group
from environments.types import JsonObject, PlayedRollout, Problem, Split
from tests.environments.speaking import END, Speaking
from trainers.model.tiny_tools import tool_tokenizer

TASKSETS = Path(__file__).parent / "tasksets"
SOME: JsonObject = {"train": {"select": {"limit": 3}}, "eval": {"select": {"skip": 3, "limit": 2}}}
"""Splits of any taskset."""
_BY_ITSELF = """
import asyncio, json, sys
import verifiers.v1 as vf
from verifiers.v1 import graph

def scored(task, reply):
    known = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    trace = vf.Trace(task=known, agent=vf.AgentInfo(config=vf.AgentConfig()))
    turn = graph.prepare_turn(trace, [vf.UserMessage(content=task.data.prompt)], [])
    message = vf.AssistantMessage(content=reply)
    turn.commit(vf.Response(id="1", created=0, model="m", message=message, finish_reason="stop", usage=None))
    asyncio.run(task.score(trace))
    return trace.reward

taskset, *replies = sys.argv[1:]
task = next(iter(vf.load_taskset(vf.taskset_config_type(taskset)(id=taskset))))
print(json.dumps({reply: scored(task, reply) for reply in replies}))
"""


class VerifiersRoom:
    """One process, which loads one environment after the other, before a gateway. Belongs to the loop of the runner."""

    def __init__(self, runner: asyncio.Runner, python: Path, directory: Path) -> None:
        """`python`: of a virtual environment with verifiers. In `directory` lie a model's tokenizer and a home."""
        tool_tokenizer().save_pretrained(directory)
        self.model = directory
        self.tokenizer = ChatTokenizer(directory)
        self._python = python
        self._gateway = LocalGateway(directory / "gateway.sock")
        self._home = directory / "home"
        self._runner = runner
        self._environment = runner.run(self._start())

    async def _start(self) -> Isolated:
        pipe = asyncio.subprocess.PIPE
        self._home.mkdir()
        process = await asyncio.create_subprocess_exec(
            *(self._python, "-m", "environments.isolated.host"),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=self._home,
            env=self._variables() | {GATEWAY_SOCKET: str(self._gateway.path)},
        )
        return Isolated("verifiers", process)

    def close(self) -> None:
        self._runner.run(self._environment.aclose())
        self._runner.run(self._gateway.aclose())

    def load(self, taskset: str, **args: Any) -> None:
        """Make the environment of one of our tasksets. Raises RegistryError."""
        if args.get("client") == "train":
            args = {"tokenizer": str(self.model), "renderer": "qwen3"} | args
        self._runner.run(self._environment.load({"id": str(TASKSETS / taskset)} | args))

    def problem(self, split: Split = Split.TRAIN, index: int = 0) -> Problem:
        return self._runner.run(self._environment.ask_problem(split, index))

    def count(self, split: Split) -> int:
        return self._runner.run(self._environment.ask_count(split))

    def play(self, replies: Sequence[str], n: int = 1, max_turns: int = 4) -> tuple[list[PlayedRollout], Speaking]:
        """A group of the first problem, and the policy that said these replies."""
        policy = Speaking(self.tokenizer, [reply + END for reply in replies])
        return self._played(policy, n, max_turns), policy

    def play_without_policy(self) -> PlayedRollout:
        """The first problem, with an engine that fails."""
        [rollout] = self._played(ScriptedPolicy([RuntimeError("the engine is away")]), 1, 4)
        return rollout

    def score_alone(self, taskset: str, *replies: str) -> dict[str, float]:
        """What verifiers makes of replies to the first task, without anything of ours."""
        said = subprocess.run(
            [self._python, "-c", _BY_ITSELF, taskset, *replies],
            env=self._variables() | {"PYTHONPATH": str(TASKSETS)},
            capture_output=True,
            check=True,
        )
        found: dict[str, float] = json.loads(said.stdout)
        return found

    def _variables(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self._home)}

    def _played(self, policy: Policy, n: int, max_turns: int) -> list[PlayedRollout]:
        problem = self.problem()
        limits = SamplingParams(max_turns=max_turns, max_tokens=200)
        chat = RenderedChat(self.tokenizer, "qwen3")
        playing = play_group(
            self._environment, problem, policy, limits, n, deadline_s=60, chat=chat, gateway=self._gateway
        )
        return self._runner.run(playing)
