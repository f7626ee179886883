"""Aids to test an environment without a model: a policy that says what it is told, and a two-turn environment.

    policy = ScriptedPolicy(["olleh"])
    rollouts = asyncio.run(play_group(environment, problem, policy, SamplingParams(), 2, deadline_s=5))

For the logic of environments only: whether training works is a question for a real server.
"""

import math
from collections.abc import Sequence

import msgspec

from environments.config import SamplingParams, Stops
from environments.env import Environment, NoArgs, last_reply
from environments.policy import Completion
from environments.types import JsonObject, Message, PlayedRollout, Problem, Split

START, END = 256, 257
"""Tokens around every message of `ScriptedPolicy`; the others are bytes."""


class ScriptedPolicy:
    """Speaks bytes. Reply i of a request is `replies[i]`, going round; an exception among them is raised instead."""

    def __init__(self, replies: Sequence[str | Exception]) -> None:
        self._replies = list(replies)
        self._said = 0
        self.asked: list[SamplingParams] = []
        """What every request asked for, in order."""

    async def render(self, messages: Sequence[Message], tools: Sequence[JsonObject] = ()) -> list[int]:
        told = [*msgspec.json.encode(tools)] if tools else []
        return told + [token for message in messages for token in self._turn(message)] + [START, *b"assistant\n"]

    async def extend(
        self,
        token_ids: list[int],
        messages: Sequence[Message],
        added: Sequence[Message],
        tools: Sequence[JsonObject] = (),
    ) -> list[int]:
        return token_ids + await self.render(added)

    async def sample(self, prompt_token_ids: list[int], n: int, sampling: SamplingParams) -> list[Completion]:
        self.asked.append(sampling)
        return [self._reply(sampling.max_tokens, sampling.stops) for _ in range(n)]

    def _reply(self, max_tokens: int, stops: Stops) -> Completion:
        reply = self._replies[self._said % len(self._replies)]
        self._said += 1
        if isinstance(reply, Exception):
            raise reply
        whole = [*reply.encode(), END]
        ends: dict[str | int, int] = {token: whole.index(token) + 1 for token in stops.token_ids if token in whole}
        ends |= {stop: len((reply.partition(stop)[0] + stop).encode()) for stop in stops.strings if stop in reply}
        stopped_by = min(ends, key=lambda stop: ends[stop], default=None)
        token_ids = whole[: len(whole) if stopped_by is None else ends[stopped_by]]
        if len(token_ids) > max_tokens:
            token_ids, stopped_by = token_ids[:max_tokens], None
        said = token_ids[:-1] if isinstance(stopped_by, int) else token_ids
        text = bytes(token for token in said if token < START).decode(errors="replace")
        return Completion(
            token_ids=token_ids,
            logprobs=[math.log(0.5)] * len(token_ids),
            text=text.partition(stopped_by)[0] if isinstance(stopped_by, str) else text,
            finish_reason="stop" if stopped_by is not None or token_ids[-1] == END else "length",
            stopped_by=stopped_by,
        )

    def _turn(self, message: Message) -> list[int]:
        return [START, *f"{message.role}\n{message.text}".encode(), END]


class TwoTurns(Environment[NoArgs]):
    """Asks for the given word, then for the same word again. Reward: the share of right replies."""

    name = "two_turns"

    def __init__(self) -> None:
        super().__init__(NoArgs())

    def count(self, split: Split) -> int:
        return 3

    def problem(self, split: Split, index: int) -> Problem:
        word = ["one", "two", "three"][index]
        return Problem(key=word, messages=[Message("user", word)], data={"word": word})

    async def start(self, problem: Problem) -> list[str]:
        return []

    async def step(self, state: list[str], reply: Message) -> list[Message] | None:
        state.append(reply.text)
        return [Message("user", "again")] if len(state) == 1 else None

    def reward(self, problem: Problem, rollout: PlayedRollout) -> float:
        replies = [message.text for message in rollout.messages if message.role == "assistant"]
        word: str = problem.data["word"]
        rollout.metrics["last_right"] = float(last_reply(rollout) == word)
        return sum(reply == word for reply in replies) / len(replies)
