"""One episode's conversation with the policy, however many requests it takes and from wherever they come.

    request ─▶ the turn it goes on from ─▶ tokens: extended, or rendered anew ─▶ sampled ─▶ a turn of the record

The run's config forces temperature and budgets; a client may ask for less. What was sampled is recorded when it is
delivered: a reply that nobody got trains nothing.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from environments.chat.base import Chat
from environments.config import SamplingParams
from environments.env import SessionAddress
from environments.errors import ContextFull, InvalidAnswer, SessionOver, TurnsOver, boundary
from environments.policy import Completion, Policy
from environments.turns import Turn, Turns
from environments.types import ErrorKind, JsonObject, Message, PlayedRollout, Problem, StopReason

MOST_TOKEN_BYTES = 128
"""Of a token as JSON, nearly always: a conversation with more for each that it may have is refused unread."""
SLACK_BYTES = 16_384
"""Of JSON around short texts."""
PolicyVersion = Callable[[], int | None]


class Gateway(Protocol):
    """What gives sessions their addresses."""

    async def admit(self, session: "Session") -> SessionAddress:
        """Serve a session until it is dismissed."""
        ...

    def dismiss(self, address: SessionAddress) -> None:
        """Serve what has this address no longer."""
        ...


class Asked(msgspec.Struct, kw_only=True):
    """What came of a request, not recorded yet."""

    parent: Turn | None
    added: list[Message]
    prompt_token_ids: list[int]
    given: list[int]
    tools: list[JsonObject]
    completions: list[Completion]
    replies: list[Message]
    sent: int | None
    received: int | None
    seconds: float

    def only(self, number: int) -> "Asked":
        """One of the replies, as if nobody had asked for the others."""
        own = slice(number, number + 1)
        return msgspec.structs.replace(self, completions=self.completions[own], replies=self.replies[own])


class Session:
    """Plays one rollout. Requests may be concurrent; each goes on from what was recorded when it began."""

    def __init__(
        self,
        problem: Problem,
        policy: Policy,
        chat: Chat,
        sampling: SamplingParams,
        *,
        version: PolicyVersion = lambda: None,
        gateway: Gateway | None = None,
    ) -> None:
        """`version` tells the live policy version; it is asked when a request leaves and when its answer is in."""
        self.problem = problem
        self.turns = Turns()
        self.in_flight = 0
        """Replies that the policy was asked for."""
        self._policy = policy
        self._chat = chat
        self._sampling = sampling
        self._version = version
        self._gateway = gateway
        self._address: SessionAddress | None = None
        self._is_over = False
        self._stop_reason: StopReason | None = None
        self._facts = PlayedRollout(token_ids=[], loss_mask=[], inference_logprobs=[])

    async def address(self) -> SessionAddress:
        """Where programs play this session, until it ends: with the OpenAI SDK, an agent framework, a script."""
        self._check_open()
        if self._gateway is None:
            raise SessionOver("This session has no gateway: whoever made it serves none.")
        if self._address is None:
            self._address = await self._gateway.admit(self)
        return self._address

    async def reply(
        self, messages: Sequence[Message] | None = None, tools: Sequence[JsonObject] | None = None
    ) -> Message:
        """Ask for the next reply to a conversation, at first to the problem's, and record it. Raises EpisodeError."""
        asked = await self.ask(self.problem.messages if messages is None else messages, tools)
        return self.deliver(asked)[0].reply

    async def ask(
        self,
        messages: Sequence[Message],
        tools: Sequence[JsonObject] | None = None,
        *,
        n: int = 1,
        max_tokens: int | None = None,
        shared: bool = False,
    ) -> Asked:
        """Sample `n` replies; `deliver` records them. Raises EpisodeError: ContextFull, TurnsOver, PolicyError.

        `shared`: they are for as many sessions, one each.
        """
        self._check_size(messages, tools)
        told = list(self.problem.tools if tools is None else tools)
        parent, added = self.turns.find(messages, told)
        prompt: list[int] | None = None
        with boundary(ErrorKind.POLICY):
            if parent is not None and added:
                before = parent.token_ids
                sampled = len(parent.completion.token_ids)
                prompt = await self._chat.extend(before, sampled, parent.conversation, added, told)
                if prompt is not None and prompt[: len(before)] != before:
                    # Training on it would put logprobs next to tokens they do not belong to.
                    raise InvalidAnswer(
                        "The tokens of a further turn do not start with the tokens of the turns before."
                    )
            if prompt is None:
                # The same again asks for another reply to it.
                parent, added = None, list(messages)
                prompt = await self._chat.render(messages, told)
        return await self._sample(parent, added, prompt, told, n, max_tokens, own=1 if shared else n)

    async def ask_tokens(self, prompt_token_ids: list[int], *, n: int = 1, max_tokens: int | None = None) -> Asked:
        """The same of a client that renders itself. What it said beside the replies is known as tokens only."""
        parent = self.turns.find_tokens(prompt_token_ids)
        return await self._sample(parent, [], prompt_token_ids, [], n, max_tokens, own=n)

    def deliver(self, asked: Asked) -> list[Turn]:
        """Record the replies of a request: somebody has them now. Raises SessionOver."""
        self._check_open()
        self._check_turns(len(asked.completions))
        facts, self._stop_reason = self._facts, None
        for completion in asked.completions:
            first = asked.sent if completion.first_policy_version is None else completion.first_policy_version
            last = asked.received if completion.last_policy_version is None else completion.last_policy_version
            is_first = not self.turns
            facts.dispatch_policy_version = _extreme(min, facts.dispatch_policy_version, asked.sent, is_first)
            facts.first_policy_version = _extreme(min, facts.first_policy_version, first, is_first)
            facts.last_policy_version = _extreme(max, facts.last_policy_version, last, is_first)
        facts.generation_s += asked.seconds
        return [
            self.turns.add(asked.parent, asked.added, asked.given, completion, reply, asked.tools)
            for completion, reply in zip(asked.completions, asked.replies, strict=True)
        ]

    def end(self) -> PlayedRollout:
        """End the session; return what it left, without a reward."""
        self._is_over = True
        if self._gateway is not None and self._address is not None:
            self._gateway.dismiss(self._address)
        rollout = msgspec.structs.replace(self._facts, messages=list(self.problem.messages), tools=self.problem.tools)
        self.turns.fill(rollout)
        if self._stop_reason is not None:
            rollout.stop_reason = self._stop_reason
        return rollout

    async def _sample(
        self,
        parent: Turn | None,
        added: list[Message],
        prompt_token_ids: list[int],
        tools: list[JsonObject],
        n: int,
        max_tokens: int | None,
        *,
        own: int,
    ) -> Asked:
        """`own`: how many of the replies are of this session."""
        self._check_open()
        self._check_turns(self.in_flight + own)
        sampling = self._sampling
        room = math.inf if sampling.max_total_tokens is None else sampling.max_total_tokens - len(prompt_token_ids)
        if room < 1:
            self._stop_reason = StopReason.LENGTH
            raise ContextFull(
                f"The conversation's {len(prompt_token_ids)} tokens leave no room for a reply within "
                f"{sampling.max_total_tokens} tokens."
            )
        limit = int(min(sampling.max_tokens, room, math.inf if max_tokens is None else max_tokens))
        asked = msgspec.structs.replace(sampling, max_tokens=limit)
        sent, began = self._version(), time.monotonic()
        self.in_flight += own
        try:
            with boundary(ErrorKind.POLICY):
                completions = await self._policy.sample(prompt_token_ids, n, asked)
                if len(completions) != n:
                    raise ValueError(f"the policy gave {len(completions)} replies for {n}")
                replies = [self._chat.parse(prompt_token_ids, each, tools) for each in completions]
        finally:
            self.in_flight -= own
        known = 0 if parent is None else len(parent.token_ids)
        return Asked(
            parent=parent,
            added=added,
            prompt_token_ids=prompt_token_ids,
            given=prompt_token_ids[known:],
            tools=tools,
            completions=completions,
            replies=replies,
            sent=sent,
            received=self._version(),
            seconds=time.monotonic() - began,
        )

    def _check_open(self) -> None:
        if self._is_over:
            raise SessionOver

    def _check_turns(self, more: int) -> None:
        limit = self._sampling.max_turns
        if len(self.turns) + more > limit:
            self._stop_reason = StopReason.TURNS
            raise TurnsOver(f"The episode may have {limit} turns (sampling.max_turns); it has {len(self.turns)}.")

    def _check_size(self, messages: Sequence[Message], tools: Sequence[JsonObject] | None) -> None:
        """Refuse what cannot fit before anything is spent on its tokens."""
        limit = self._sampling.max_total_tokens
        if limit is not None and len(msgspec.json.encode((messages, tools))) > limit * MOST_TOKEN_BYTES + SLACK_BYTES:
            self._stop_reason = StopReason.LENGTH
            raise ContextFull(f"The conversation is far longer than {limit} tokens.")


def _extreme(choose: Callable[[int, int], int], known: int | None, version: int | None, is_first: bool) -> int | None:
    """The oldest or newest version; None when one of them is not known."""
    if is_first:
        return version
    return None if known is None or version is None else choose(known, version)
