"""The model's own chat template, rendered by the inference server: knows every model, and none of them closely.

A reply is text, but for a thought that the template itself has opened: tools are told, their calls are not recognised.
A further turn goes on exactly where the template closes turns with the token that replies end on; otherwise each of
them starts a branch, and so does what follows a reply that was cut.
"""

import asyncio
import math
import time
from array import array
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from environments.errors import ContextFull, PolicyRefused, UnfollowableTurn
from environments.policy import Completion, Policy
from environments.types import JsonObject, Message

_OPEN, _CLOSED = "<think>", "</think>"
_PROBES = ("?", _OPEN, f"{_OPEN}\n.", _CLOSED)
"""What is asked to see tokens: those that two prompts do not share are the words'. White space at an end may be cut."""
_MAX_KEPT, _MAX_KEPT_BYTES = 1_024, 8_192
"""Prompts of a model, and bytes of a conversation as JSON."""
_KEPT_S = 600.0
"""A template may tell the day."""


class Prompts:
    """What one model's template made of short conversations lately. Evaluations ask the same problems each time, and to
    render one costs a server about as much as to sample a short reply."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, tuple[float, array[int]]] = OrderedDict()
        """By the conversation: when it was rendered, and its tokens."""

    async def render(self, policy: Policy, messages: Sequence[Message], tools: Sequence[JsonObject]) -> list[int]:
        """The prompt's tokens, from the policy if need be. Raises PolicyError."""
        asked = msgspec.json.encode((messages, tools))
        rendered_at, tokens = self._kept.pop(asked, (-math.inf, array("i")))
        if (now := time.monotonic()) - rendered_at > _KEPT_S:
            rendered_at, tokens = now, array("i", await policy.render(messages, tools))
        if len(asked) <= _MAX_KEPT_BYTES:
            self._kept[asked] = rendered_at, tokens
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        return tokens.tolist()


class OpenThoughts:
    """How prompts of one model's template end in an open thought: found once, by all chats of it together."""

    def __init__(self) -> None:
        self._opened: list[list[int]] | None = None
        """Tokens of an open thought at the end of a prompt. None: not known yet."""
        self._closed: list[int] = []
        """Tokens of its end."""
        self._finding = asyncio.Lock()

    async def find(self, policy: Policy) -> None:
        """Ask the policy, unless it is known. Raises PolicyError when it cannot be asked."""
        if self._opened is not None:
            return
        async with self._finding:
            if self._opened is None:
                await self._find(policy)

    async def _find(self, policy: Policy) -> None:
        asked = [[Message("user", words)] for words in _PROBES]
        try:
            other, *found = await asyncio.gather(*(policy.render(messages) for messages in asked))
        except (PolicyRefused, ContextFull):  # a template that wants more than a question, or has no room for it
            self._opened = []
            return
        opened, opened_line, self._closed = (_apart(tokens, other) for tokens in found)
        self._opened = [tokens for tokens in (opened, opened_line[:-1]) if tokens]

    def end(self, prompt_token_ids: list[int]) -> bool:
        """Whether this prompt ends in one."""
        return any(prompt_token_ids[-len(tokens) :] == tokens for tokens in self._opened or ())

    def are_closed_unseen(self, token_ids: list[int]) -> bool:
        """Whether the end is a control token, which no text has, and among these."""
        return len(self._closed) == 1 and self._closed[0] in token_ids


class TemplateChat:
    """See the module."""

    ends: tuple[int, ...] = ()

    def __init__(self, policy: Policy, thoughts: OpenThoughts | None = None, prompts: Prompts | None = None) -> None:
        """`thoughts`, `prompts`: of the model, shared by all its chats."""
        self._policy = policy
        self._thoughts = thoughts or OpenThoughts()
        self._prompts = prompts or Prompts()

    async def ready(self) -> None:
        await self._thoughts.find(self._policy)

    async def render(self, messages: Sequence[Message], tools: Sequence[JsonObject]) -> list[int]:
        prompt = await self._prompts.render(self._policy, messages, tools)
        await self.ready()
        return prompt

    async def extend(
        self,
        token_ids: list[int],
        sampled: Completion,
        messages: Sequence[Message],
        added: Sequence[Message],
        tools: Sequence[JsonObject],
    ) -> list[int] | None:
        if not sampled.ended_its_turn:
            return None  # which token would end it is not known
        try:
            prompt = await self._policy.extend(token_ids, messages, added, tools)
        except UnfollowableTurn:
            return None
        await self.ready()
        return prompt

    def parse(self, prompt_token_ids: list[int], completion: Completion, tools: Sequence[JsonObject] | None) -> Message:
        text = completion.text
        if not self._thoughts.end(prompt_token_ids):
            return Message("assistant", text)
        thought, is_closed, said = text.partition(_CLOSED)
        if not is_closed and self._thoughts.are_closed_unseen(completion.token_ids):
            return Message("assistant", text)  # who knows where it was
        return Message("assistant", said.lstrip("\n") if is_closed else None, reasoning_content=thought.strip("\n"))


def _apart(one: list[int], other: list[int]) -> list[int]:
    """What is between the tokens at the beginning and at the end that both have."""
    shorter = min(len(one), len(other))
    before = next((at for at in range(shorter) if one[at] != other[at]), shorter)
    behind = next((at for at in range(shorter - before) if one[-1 - at] != other[-1 - at]), shorter - before)
    return one[before : len(one) - behind]
