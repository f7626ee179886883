"""Who plays the episodes of a run: its inference replicas, or an endpoint; and who has the seats that the run has not.

claim ──▶ Players.find ──▶ Player: the policy and its chat format, or a speaker
              └─ seated ──▶ a session for each seat that one of [[policies]] has
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from environments import runner
from environments.chat.base import Chat
from environments.config import SamplingParams
from environments.env import PolicySession
from environments.errors import (
    ContextFull,
    ConversationTooLong,
    EndpointError,
    EndpointUnavailable,
    EpisodeError,
    InvalidAnswer,
    PolicyRefused,
    PolicyUnavailable,
    UnreadableAnswer,
)
from environments.policy import Policy
from environments.seats import RUN
from environments.session import PolicyVersion
from environments.speakers import Speaker, SpokenSession
from environments.types import ChatAnswer, JsonObject, Message, Problem
from rollouts.models import Run
from trainers.run_config import PolicyRef
from workers.chats import Chats
from workers.fleet.replica_pool import GroupPolicy, ReplicaPool
from workers.others import Count, GroupOthers, OthersOfRun, PolicyQuestion

log = logging.getLogger(__name__)

PATIENCE_S = 300.0
"""Seconds for which an endpoint that is away, or busy, is asked again: nothing is measured by its bad minute."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


class Player(NamedTuple):
    """Who plays one group."""

    policy: Policy | Speaker
    chat: Chat | None
    version: PolicyVersion
    name: Callable[[], str]
    """Of what answered last."""
    context: int | None
    """Tokens of the longest conversation; None: whoever answers knows."""


class Players:
    """Of one driver. Belongs to one event loop."""

    def __init__(self, run: Run, pool: ReplicaPool, others: OthersOfRun) -> None:
        self._config = run.parsed
        self._pool = pool
        self._others = others
        self._chats = Chats(self._config.model.path)

    async def find(self, *, oldest_version: int, count: Count, endpoint: str = "") -> Player:
        """The run's own policy, at least of a version, or an endpoint. Raises PolicyError.

        What an endpoint is asked is counted as what one of `[[policies]]` is, under its own name.
        """
        endpoint = endpoint or self._config.model.endpoint
        if endpoint:
            speaker = EndpointSpeaker(self._others, endpoint, count)
            return Player(speaker, None, lambda: oldest_version, lambda: f"endpoint {endpoint}", None)
        policy = GroupPolicy(self._pool, oldest_version=oldest_version)
        chat = await self._chats.of(policy)
        return Player(policy, chat, policy.version, lambda: policy.replica, self._config.inference.max_model_len)

    def seated(
        self, seating: Mapping[str, str], sampling: SamplingParams, others: GroupOthers
    ) -> dict[str, runner.Player]:
        """Who takes the seats that the run does not play."""

        def sit(name: str, problem: Problem) -> PolicySession:
            return SpokenSession(problem, OtherSpeaker(others, name), sampling)

        return {seat: partial(sit, name) for seat, name in seating.items() if name != RUN}


class EndpointSpeaker(Speaker):
    """An endpoint in place of the policy: whatever keeps it from answering is the policy's failure."""

    def __init__(self, others: OthersOfRun, endpoint: str, count: Count) -> None:
        self._others = others
        # Nothing is capped but by the run's own sampling.
        self._ref = PolicyRef.model_construct(name=endpoint, endpoint=endpoint)
        self._count = count

    async def speak(
        self, messages: Sequence[Message], tools: Sequence[JsonObject], sampling: SamplingParams
    ) -> ChatAnswer:
        question = PolicyQuestion(
            messages=list(messages),
            tools=list(tools),
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            seed=None,
            stops=list(sampling.stops.strings),
        )
        expires, pause_s = time.monotonic() + PATIENCE_S, _FIRST_PAUSE_S
        while True:
            try:
                return await self._others.ask(self._ref, question, self._count)
            except EndpointUnavailable as error:
                if time.monotonic() + pause_s > expires:
                    raise _of_policy(error) from error
                log.info("%s: %s", self._ref.endpoint, error)
            except EndpointError as error:
                raise _of_policy(error) from error
            await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)


class OtherSpeaker(Speaker):
    """One of the run's `[[policies]]`, in a seat: asked as often as its `max_asks` lets it be."""

    def __init__(self, others: GroupOthers, name: str) -> None:
        self._others = others
        self._name = name

    async def speak(
        self, messages: Sequence[Message], tools: Sequence[JsonObject], sampling: SamplingParams
    ) -> ChatAnswer:
        return await self._others.reply(
            self._name, messages, tools, max_tokens=sampling.max_tokens, temperature=sampling.temperature
        )


def _of_policy(error: EndpointError) -> EpisodeError:
    kinds: dict[type[EndpointError], type[EpisodeError]] = {
        ConversationTooLong: ContextFull,
        EndpointUnavailable: PolicyUnavailable,
        UnreadableAnswer: InvalidAnswer,
    }
    return kinds.get(type(error), PolicyRefused)(str(error))
