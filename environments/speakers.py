"""Models that answer with messages and show none of their tokens: what they play can be scored, and trains nobody.

conversation ──▶ speak ──▶ a message ──▶ a turn of the record, without tokens
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import ClassVar

from environments.chat.template import TemplateChat
from environments.config import SamplingParams, Stops
from environments.errors import PolicyRefused
from environments.figures import COMPLETION_TOKENS, PROMPT_TOKENS, REPLIES
from environments.policy import Completion
from environments.session import NO_STOPS, Asked, PolicyVersion, Session
from environments.traffic import Traffic
from environments.turns import Turn
from environments.types import ChatAnswer, FinishedRollout, JsonObject, Message, Problem


class Speaker(ABC):
    """A model behind an API of chats."""

    @abstractmethod
    async def speak(
        self, messages: Sequence[Message], tools: Sequence[JsonObject], sampling: SamplingParams
    ) -> ChatAnswer:
        """Return the next reply to a conversation. Raises EpisodeError."""


class SpokenSession(Session):
    """An episode that a speaker plays. Its rollout has messages, and how many tokens they took as metrics."""

    shares_prompts: ClassVar[bool] = False

    def __init__(
        self,
        problem: Problem,
        speaker: Speaker,
        sampling: SamplingParams,
        *,
        version: PolicyVersion = lambda: None,
        traffic: Traffic | None = None,
        heard: Callable[[Turn], None] = lambda _turn: None,
    ) -> None:
        """As `Session`. No program plays it by an address: what a gateway serves has tokens."""
        nobody = _Tokenless()
        super().__init__(problem, nobody, TemplateChat(nobody), sampling, version=version, traffic=traffic, heard=heard)
        self._speaker = speaker
        self._prompt_tokens = 0

    async def ask(
        self,
        messages: Sequence[Message],
        tools: Sequence[JsonObject] | None = None,
        *,
        n: int = 1,
        max_tokens: int | None = None,
        stops: Stops = NO_STOPS,
        shared: bool = False,
    ) -> Asked:
        self._check_size(messages, tools)
        told = list(self.problem.tools if tools is None else tools)
        parent, added = self.turns.find(messages, told)
        if not added:  # the same again asks for another reply to it
            parent, added = None, list(messages)
        return await self._sample(parent, added, [], messages, told, n, max_tokens, stops, own=1 if shared else n)

    def end(self) -> FinishedRollout:
        sampled = sum(turn.completion.unseen_tokens or 0 for turn in self.turns)
        rollout = super().end()
        rollout.metrics |= {PROMPT_TOKENS: float(self._prompt_tokens), COMPLETION_TOKENS: float(sampled)}
        if self.turns and (replies := _own_at_the_end(self.turns.newest)) < len(self.turns):
            rollout.metrics[REPLIES] = float(replies)
        return rollout

    async def _complete(
        self,
        prompt_token_ids: list[int],
        messages: Sequence[Message],
        tools: list[JsonObject] | None,
        n: int,
        sampling: SamplingParams,
    ) -> tuple[list[Completion], list[Message]]:
        answers = await asyncio.gather(*(self._speaker.speak(messages, tools or [], sampling) for _ in range(n)))
        self._prompt_tokens += sum(answer.prompt_tokens for answer in answers)
        return [_completion(answer) for answer in answers], [answer.message for answer in answers]


def _own_at_the_end(last: Turn) -> int:
    """How many of the assistant's last messages were answers, in the conversation that a turn ends: those behind the
    last one that nobody asked a model for."""
    behind = takewhile(lambda turn: not _shows_assistant(turn), reversed(last.path))
    return min(sum(1 for _ in behind) + 1, len(last.path))


def _shows_assistant(turn: Turn) -> bool:
    """Whether words of an assistant stand before the answer, since the turn before."""
    return any(message.role == "assistant" for message in turn.messages[:-1])


def _completion(answer: ChatAnswer) -> Completion:
    return Completion(
        token_ids=[],
        logprobs=[],
        text=answer.message.text,
        finish_reason=answer.finish_reason,
        unseen_tokens=answer.completion_tokens,
    )


class _Tokenless:
    """A policy of which nobody has tokens."""

    async def render(self, messages: Sequence[Message], tools: Sequence[JsonObject] = ()) -> list[int]:
        raise _refusal()

    async def extend(
        self,
        token_ids: list[int],
        messages: Sequence[Message],
        added: Sequence[Message],
        tools: Sequence[JsonObject] = (),
    ) -> list[int]:
        raise _refusal()

    async def sample(self, prompt_token_ids: list[int], n: int, sampling: SamplingParams) -> list[Completion]:
        raise _refusal()


def _refusal() -> PolicyRefused:
    return PolicyRefused("The model behind an endpoint takes messages, and no tokens: play with a model of the run.")
