"""Models beside the policy: an environment asks them by name, here and in a process of its own, as long as it plays."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from environments import others
from environments.config import SamplingParams
from environments.env import Environment, NoArgs
from environments.errors import AsksOver, NoSuchPolicy
from environments.fakes import ScriptedPolicy
from environments.runner import play_group
from environments.types import (
    ChatAnswer,
    ErrorKind,
    FinishedRollout,
    JsonObject,
    Message,
    PlayedRollout,
    Problem,
    Split,
)
from tests.environments.test_isolated_play import started

PROGRAM = """
from environments import others
from environments.env import Environment
from environments.types import Message, Problem

class Asking(Environment):
    name = "asking"
    def count(self, split):
        return 1
    def problem(self, split, index):
        return Problem(key="p", messages=[Message("user", "hello")])
    async def play(self, problem, session):
        said = await session.reply()
        answer = await others.reply("user", [said], max_tokens=5, temperature=0.5)
        await session.reply([*problem.messages, said, Message("user", answer.message.text)])
    async def score_group(self, problem, rollouts):
        judged = await others.reply("judge", [Message("user", "which?")], seed=3)
        return [float(judged.message.text)] * len(rollouts)
"""


class Scripted:
    """Answers by name, and keeps what it was asked."""

    def __init__(self, **answers: str | Exception) -> None:
        self.answers = answers
        self.asked: list[tuple[str, list[str], dict[str, Any]]] = []

    async def reply(
        self, name: str, messages: Sequence[Message], tools: Sequence[JsonObject] = (), **given: Any
    ) -> ChatAnswer:
        self.asked.append((name, [message.text for message in messages], given))
        if isinstance(answer := self.answers[name], Exception):
            raise answer
        return ChatAnswer(message=Message("assistant", answer))


class AsksToScore(Environment[NoArgs]):
    name = "asks_to_score"

    def count(self, split: Split) -> int:
        return 1

    def problem(self, split: Split, index: int) -> Problem:
        return Problem(key="p", messages=[Message("user", "hello")])

    async def score_group(self, problem: Problem, rollouts: Sequence[FinishedRollout]) -> Sequence[float | Exception]:
        return [float((await others.reply("judge", problem.messages)).message.text)] * len(rollouts)


async def play(environment: Environment[Any]) -> PlayedRollout:
    policy = ScriptedPolicy(["good day"])
    problem = await asyncio.to_thread(environment.problem, Split.TRAIN, 0)
    [rollout] = await play_group(environment, problem, policy, SamplingParams(max_turns=4), 1, deadline_s=30)
    return rollout


def test_a_reward_asks_whoever_answers_where_it_is_played() -> None:
    judge = Scripted(judge="0.25")

    async def act() -> PlayedRollout:
        with others.using(judge):
            return await play(AsksToScore(NoArgs()))

    assert asyncio.run(act()).reward == 0.25
    assert judge.asked == [("judge", ["hello"], {"max_tokens": 256, "temperature": 0.0, "seed": None})]


def test_nobody_answers_where_nobody_was_named() -> None:
    rollout = asyncio.run(play(AsksToScore(NoArgs())))
    assert rollout.error is not None
    assert (rollout.error.kind, rollout.error.type) == (ErrorKind.TOOL, "NoSuchPolicy")
    assert "[[policies]]" in rollout.error.message


@pytest.mark.slow
def test_a_process_asks_through_its_pipe_in_play_and_in_scoring(tmp_path: Path) -> None:
    (tmp_path / "asking.py").write_text(PROGRAM)
    answering = Scripted(user="and to you", judge="0.5")
    refusing = Scripted(user=AsksOver("asked too often"), judge="0.5")

    async def act() -> list[PlayedRollout]:
        environment = await started("asking:Asking", tmp_path)
        try:
            await environment.load({})
            played = []
            for who in (answering, refusing):
                with others.using(who):
                    played.append(await play(environment))
            return [*played, await play(environment)]
        finally:
            await environment.aclose()

    answered, refused, alone = asyncio.run(asyncio.wait_for(act(), 60))
    assert answered.error is None, answered.error
    assert answered.reward == 0.5
    assert [message.text for message in answered.messages if message.role == "user"] == ["hello", "and to you"]
    assert answering.asked == [
        ("user", ["good day"], {"max_tokens": 5, "temperature": 0.5, "seed": None}),
        ("judge", ["which?"], {"max_tokens": 256, "temperature": 0.0, "seed": 3}),
    ]
    assert refused.error is not None
    assert refused.error.kind is ErrorKind.BUDGET
    assert (refused.error.type, refused.error.message) == (AsksOver.__name__, "asked too often")
    assert alone.error is not None
    assert alone.error.type == NoSuchPolicy.__name__
