"""An environment in a process of its own that plays its episodes itself: the driver asks the policy for it."""

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from environments.chat.template import TemplateChat
from environments.config import SamplingParams
from environments.fakes import ScriptedPolicy
from environments.isolated import Isolated, RemoteAsk
from environments.policy import Completion
from environments.runner import play_group
from environments.types import ErrorKind, FunctionCall, Message, PlayedRollout, Split, StopReason, ToolCall

pytestmark = pytest.mark.slow  # each starts a process

GREEDY = SamplingParams(max_turns=4)


class Calling(TemplateChat):
    """A reply that begins with `add` is a call."""

    def parse(self, prompt_token_ids: list[int], completion: Completion, tools: Any) -> Message:
        name, _, arguments = completion.text.partition(" ")
        if name != "add":
            return Message("assistant", completion.text)
        return Message("assistant", None, tool_calls=[ToolCall("call_1", FunctionCall(name, arguments))])


def played(
    replies: Callable[[dict[str, Any]], list[str]], n: int = 1, sampling: SamplingParams = GREEDY
) -> list[PlayedRollout]:
    """A group of the first problem of `calculator`, in a process without a sandbox."""

    async def act() -> list[PlayedRollout]:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "environments.isolated_host"),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        environment = Isolated("calculator", process)
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
            "say(-7, {'session': 99, 'messages': None, 'tools': None}, None)\n"
            "heard = {}\n"
            "while len(heard) < 2:\n"
            "    size = int.from_bytes(sys.stdin.buffer.read(4), 'big')\n"
            "    number, method, parameters = msgspec.msgpack.decode(sys.stdin.buffer.read(size))\n"
            "    heard[method] = number, parameters\n"
            "replied = heard['replied'][1]\n"
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


def test_an_ask_is_what_it_says() -> None:
    sent = msgspec.msgpack.encode(RemoteAsk(1, [Message("user", "x")], None))
    assert msgspec.msgpack.decode(sent, type=RemoteAsk).messages == [Message("user", "x")]
