"""An environment in a process of its own that plays its episodes itself: the driver asks the policy for it."""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from environments.chat.template import TemplateChat
from environments.config import SamplingParams
from environments.fakes import ScriptedPolicy
from environments.gateway.local import LocalGateway
from environments.isolated import Isolated
from environments.isolated.asking import Tool
from environments.isolated.frames import GATEWAY_SOCKET
from environments.isolated.process import refuse_tools
from environments.policy import Completion
from environments.runner import play_group
from environments.sandbox.call import SandboxCall, SandboxResult
from environments.sandbox.remote import SandboxService
from environments.types import (
    ErrorKind,
    FinishedRollout,
    FunctionCall,
    Message,
    PlayedRollout,
    Problem,
    SpanKind,
    Split,
    StopReason,
    ToolCall,
)

pytestmark = pytest.mark.slow  # each starts a process

GREEDY = SamplingParams(max_turns=4)
PLAYED = FinishedRollout(token_ids=[], loss_mask=[], inference_logprobs=[])


PROGRAM = """
import asyncio, json, urllib.request
from environments.env import Environment
from environments.types import Message, Problem

def post(url, key, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Authorization": f"Bearer {key}"})
    return json.load(urllib.request.urlopen(request))

class Program(Environment):
    name = "program"
    def count(self, split):
        return 1
    def problem(self, split, index):
        return Problem(key="p", messages=[Message("user", "say a number")])
    async def play(self, problem, session):
        url, key = await asyncio.to_thread(asyncio.run, session.address())  # from an event loop of its own
        asked = {"model": "policy", "messages": [{"role": "user", "content": "say a number"}]}
        answer = await asyncio.to_thread(post, f"{url}/chat/completions", key, asked)
        session.note({"length": len(answer["choices"][0]["message"]["content"])})
    def reward(self, problem, rollout):
        return rollout.notes["length"]
"""


ODD = """
from environments.env import Environment
from environments.types import Message, Problem

class Odd(Environment):
    name = "odd"
    def count(self, split):
        return 2
    def problem(self, split, index):
        return Problem(key=str(index), messages=[Message("user", "?")], data={"said": ["no", 3][index]})
    async def play(self, problem, session):
        said = await session.reply()
        await session.reply([*problem.messages, said, Message("user", problem.data["said"])])
    def reward(self, problem, rollout):
        return 1.0
"""
LARGE = """
import asyncio
from environments.env import Environment
from environments.sandbox.tools import run
from environments.types import Message, Problem

class Large(Environment):
    name = "large"
    def count(self, split):
        return 1
    def problem(self, split, index):
        return Problem(key="p", messages=[Message("user", "?")], data={"tests": "x" * 200_000})
    def reward(self, problem, rollout):
        return 1.0

class Running(Large):
    async def score_group(self, problem, rollouts):
        programs, size = problem.data["programs"], problem.data["bytes"]
        done = await asyncio.gather(*(run(["x"], {"file": bytes(size)}) for _ in range(programs)))
        return [sum(each.succeeded for each in done)]
"""


class Calling(TemplateChat):
    """A reply that begins with `add` is a call."""

    def parse(self, prompt_token_ids: list[int], completion: Completion, tools: Any) -> Message:
        name, _, arguments = completion.text.partition(" ")
        if name != "add":
            return Message("assistant", completion.text)
        return Message("assistant", None, tool_calls=[ToolCall("call_1", FunctionCall(name, arguments))])


async def started(
    name: str, *path: Path, tool: Tool = refuse_tools, variables: Mapping[str, str] | None = None
) -> Isolated:
    """The process of an environment, without a sandbox."""
    pipe, paths = asyncio.subprocess.PIPE, [*map(str, path), *(each for each in sys.path if each)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "environments.isolated.host"),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), **(variables or {})},
    )
    return Isolated(name, process, tool=tool)


def played(
    replies: Callable[[dict[str, Any]], list[str]], n: int = 1, sampling: SamplingParams = GREEDY
) -> list[PlayedRollout]:
    """A group of the first problem of `calculator`, in a process without a sandbox."""

    async def act() -> list[PlayedRollout]:
        environment = await started("calculator")
        try:
            await environment.load({})
            assert environment.plays_itself
            problem = await asyncio.to_thread(environment.problem, Split.TRAIN, 0)
            policy = ScriptedPolicy(replies(problem.data))
            return await play_group(
                environment, problem, policy, sampling, n, deadline_s=30, chat=Calling(policy), replica="r"
            )
        finally:
            await environment.aclose()

    return asyncio.run(asyncio.wait_for(act(), 60))


def call(data: dict[str, Any]) -> str:
    return f"add {msgspec.json.encode(data).decode()}"


def test_calls_are_answered_over_there_and_sampled_here() -> None:
    [rollout] = played(lambda data: [call(data), str(data["a"] + data["b"])])
    assert rollout.error is None, rollout.error
    assert (rollout.reward, rollout.branch_lengths) == (1.0, [])
    assert [message.role for message in rollout.messages] == ["user", "assistant", "tool", "assistant"]
    assert rollout.metrics == {"right": 1.0, "calls": 1.0}


def test_a_budget_that_runs_out_ends_the_episode_over_there_as_it_would_here() -> None:
    [rollout] = played(lambda data: [call(data)], sampling=SamplingParams(max_turns=2))
    assert (rollout.reward, rollout.stop_reason) == (0.3, StopReason.TURNS)


def test_an_ask_of_no_session_is_refused_and_ends_nothing() -> None:
    async def act() -> None:
        pipe = asyncio.subprocess.PIPE
        hostile = (
            "import sys, msgspec\n"
            "def say(*said):\n"
            "    body = msgspec.msgpack.encode(said)\n"
            "    sys.stdout.buffer.write(len(body).to_bytes(4, 'big') + body); sys.stdout.flush()\n"
            "say(-7, {'type': 'reply', 'session': 99, 'messages': None, 'tools': None}, None)\n"
            "heard = {}\n"
            "while len(heard) < 2:\n"
            "    size = int.from_bytes(sys.stdin.buffer.read(4), 'big')\n"
            "    number, method, parameters = msgspec.msgpack.decode(sys.stdin.buffer.read(size))\n"
            "    heard[method] = number, parameters\n"
            "replied = heard['told'][1]\n"
            "assert replied[0] == 7 and replied[2]['type'] == 'SessionOver', replied\n"
            "say(heard['count'][0], 3, None)\n"
            "sys.stdin.read()\n"
        )
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", hostile), stdin=pipe, stdout=pipe, stderr=pipe
        )
        environment = Isolated("guest", process)
        try:
            assert await asyncio.to_thread(environment.count, Split.TRAIN) == 3
        finally:
            await environment.aclose()

    asyncio.run(act())


def test_errors_of_the_environment_keep_their_kind() -> None:
    [rollout] = played(lambda data: [RuntimeError("away")])  # type: ignore[list-item]
    assert rollout.error is not None
    assert (rollout.error.kind, rollout.error.type) == (ErrorKind.POLICY, "PolicyError")


def test_a_program_over_there_plays_through_an_address_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "program_environment.py").write_text(PROGRAM)

    async def act() -> list[PlayedRollout]:
        gateway = LocalGateway(tmp_path / "gateway.sock")
        variables = {GATEWAY_SOCKET: str(gateway.path)}
        environment = await started("program_environment:Program", tmp_path, variables=variables)
        try:
            await environment.load({})
            policy = ScriptedPolicy(["four", "5"])
            problem = await environment.ask_problem(Split.TRAIN, 0)
            return await play_group(environment, problem, policy, GREEDY, 2, deadline_s=30, gateway=gateway)
        finally:
            await environment.aclose()
            await gateway.aclose()

    first, second = asyncio.run(asyncio.wait_for(act(), 60))
    assert [first.error, second.error] == [None, None]
    assert {first.reward, second.reward} == {4.0, 1.0}, "what play noted is there when it is scored, for each its own"
    assert [message.text for message in first.messages] == ["say a number", first.messages[-1].text]
    kinds = [span.kind for span in first.spans]  # what takes less than a millisecond behind the reply has none
    assert [*kinds[:2], kinds[-1]] == [SpanKind.TOOLS, SpanKind.MODEL, SpanKind.SCORING]


def test_a_message_whose_content_is_no_text_fails_its_episode_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "odd_environment.py").write_text(ODD)

    async def act() -> list[list[PlayedRollout]]:
        environment = await started("odd_environment:Odd", tmp_path)
        try:
            await environment.load({})
            problems = [await environment.ask_problem(Split.TRAIN, index) for index in range(2)]
            policy = ScriptedPolicy(["yes"])
            groups = (play_group(environment, problem, policy, GREEDY, 2, deadline_s=30) for problem in problems)
            return list(await asyncio.gather(*groups))
        finally:
            await environment.aclose()

    good, odd = asyncio.run(asyncio.wait_for(act(), 60))
    assert [rollout.reward for rollout in good] == [1.0, 1.0]
    errors = [(rollout.error.kind, rollout.error.type) for rollout in odd if rollout.error]
    assert errors == [(ErrorKind.ENVIRONMENT, "ValidationError")] * 2


def played_large(path: Path) -> tuple[list[PlayedRollout], bool]:
    """A group of 64 whose problem is 200 kB, and whether its process answers after it."""
    (path / "large_environment.py").write_text(LARGE)

    async def act() -> tuple[list[PlayedRollout], bool]:
        environment = await started("large_environment:Large", path)
        try:
            await environment.load({})
            problem = await environment.ask_problem(Split.TRAIN, 0)
            group = await play_group(environment, problem, ScriptedPolicy(["yes"]), GREEDY, 64, deadline_s=30)
            return group, await environment.answers(within_s=30)
        finally:
            await environment.aclose()

    return asyncio.run(asyncio.wait_for(act(), 60))


def test_a_group_that_is_told_more_than_may_be_unread_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, megabytes in {"MAX_FRAME_BYTES": 2, "_UNREAD_BYTES": 1, "_MOST_UNREAD_BYTES": 4}.items():
        monkeypatch.setattr(f"environments.isolated.process.{name}", megabytes * 2**20)
    group, answers = played_large(tmp_path)
    assert [rollout.reward for rollout in group] == [1.0] * 64
    assert answers


def test_a_call_that_is_too_large_fails_its_group_and_not_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("environments.isolated.process.MAX_FRAME_BYTES", 100_000)
    group, answers = played_large(tmp_path)
    assert all(rollout.error and "play smaller groups" in rollout.error.message for rollout in group)
    assert answers


@pytest.mark.parametrize(("programs", "size"), [(1_200, 10), (30, 10 * 2**20)])
def test_any_number_of_programs_of_any_size_may_be_asked_for_at_once(tmp_path: Path, programs: int, size: int) -> None:
    (tmp_path / "large_environment.py").write_text(LARGE)

    async def act() -> float | Exception:
        class Succeeding:
            async def run(self, call: SandboxCall) -> SandboxResult:
                await environment.answers(within_s=60)  # what it asked for before has arrived now
                return SandboxResult(ended="exit", exit_code=0)

        service = SandboxService(Succeeding())
        environment = await started("large_environment:Running", tmp_path, tool=service.serve)
        try:
            await environment.load({})
            problem = Problem(key="p", messages=[], data={"programs": programs, "bytes": size})
            [score] = await environment.score_group(problem, [PLAYED])
            return score
        finally:
            await environment.aclose()

    assert asyncio.run(asyncio.wait_for(act(), 120)) == programs
