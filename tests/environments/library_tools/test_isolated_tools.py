"""The same environments in a process of their own: the driver runs their programs for them."""

import asyncio
import os
import sys
from typing import Any

import pytest

from environments.config import SamplingParams
from environments.fakes import ScriptedPolicy
from environments.isolated import Isolated
from environments.runner import play_group
from environments.sandbox.remote import SandboxService
from environments.sandbox.tools import default
from environments.types import PlayedRollout, Split
from tests.environments.library_tools.playing import CALL, CallingByLine
from tests.environments.sandbox.programs import needs_sandbox

pytestmark = [pytest.mark.slow, needs_sandbox]  # each starts a process


async def _started(name: str) -> Isolated:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "environments.isolated.host"),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(each for each in sys.path if each)},
    )
    return Isolated(name, process, tool=SandboxService(default()).serve)


def played_apart(name: str, args: dict[str, Any], *replies: str) -> PlayedRollout:
    """The first problem, in a process; `{...}` in the replies stands for what the problem knows."""

    async def act() -> PlayedRollout:
        environment = await _started(name)
        try:
            await environment.load(args)
            problem = await environment.ask_problem(Split.TRAIN, 0)
            known = {f"{{{key}}}": str(value) for key, value in problem.data.items()}
            known["{title}"] = problem.data.get("titles", [""])[0]
            said = []
            for reply in replies:
                for key, value in known.items():
                    reply = reply.replace(key, value)
                said.append(reply)
            policy = ScriptedPolicy(said)
            params = SamplingParams(max_turns=4, max_tokens=10_000)
            group = play_group(environment, problem, policy, params, 1, deadline_s=60, chat=CallingByLine(policy))
            [rollout] = await group
            assert rollout.error is None, rollout.error
            return rollout
        finally:
            await environment.aclose()

    return asyncio.run(asyncio.wait_for(act(), 120))


@pytest.mark.parametrize(
    ("name", "args", "replies"),
    [
        ("code", {}, ["```python\n{solution}\n```"]),
        ("sql", {}, ["```sql\n{query}\n```"]),
        ("python", {}, [f'{CALL}python {{"code": "print({{answer}})"}}', "<answer>{answer}</answer>"]),
        ("search", {"paragraphs": 200}, [f'{CALL}search {{"query": "{{title}}"}}', "<answer>{answer}</answer>"]),
    ],
)
def test_an_episode_in_a_process_of_its_own_is_scored_as_in_the_driver(
    name: str, args: dict[str, Any], replies: list[str]
) -> None:
    rollout = played_apart(name, args, *replies)
    assert rollout.reward == 1.0
    if len(replies) > 1:
        [told] = [message.text for message in rollout.messages if message.role == "tool"]
        assert told
        assert not told.startswith("error")
    assert played_apart(name, args, *(["nothing"] * len(replies))).reward == 0.0
