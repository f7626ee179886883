"""One episode's conversation with the policy, however many requests it takes and from wherever they come.

    request ─▶ the turn it goes on from ─▶ tokens: extended, or rendered anew ─▶ sampled ─▶ a turn of the record

The run's config forces temperature and budgets; a client may ask for less. What was sampled is recorded when it is
delivered: a reply that nobody got trains nothing.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

import msgspec

from environments.chat.base import Chat
from environments.config import SamplingParams, Stops
from environments.env import SessionAddress
from environments.errors import ContextFull, InvalidAnswer, SessionOver, TurnsOver, boundary
from environments.policy import Completion, Policy
from environments.traffic import Traffic
from environments.turns import Turn, Turns
from environments.types import ErrorKind, FinishedRollout, JsonObject, Message, Problem, Span, SpanKind, StopReason

MOST_TOKEN_BYTES = 128
"""Of a token as JSON, nearly always: a conversation with more for each that it may have is refused unread."""
SLACK_BYTES = 16_384
"""Of JSON around short texts."""
_SHORTEST_S = 0.001
"""Of a stretch of time that is worth a span."""
_MAX_SPANS = 2_000
NO_STOPS = Stops()
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
    began: float
    """By the monotonic clock."""
    seconds: float

    def only(self, number: int) -> "Asked":
        """One of the replies, as if nobody had asked for the others."""
        own = slice(number, number + 1)
        return msgspec.structs.replace(self, completions=self.completions[own], replies=self.replies[own])


class Session:
    """Plays one rollout. Requests may be concurrent; each goes on from what was recorded when it began."""

    shares_prompts: ClassVar[bool] = True
    """Whether one request gives several sessions their first replies."""

    def __init__(
        self,
        problem: Problem,
        policy: Policy,
        chat: Chat,
        sampling: SamplingParams,
        *,
        version: PolicyVersion = lambda: None,
        gateway: Gateway | None = None,
        traffic: Traffic | None = None,
        heard: Callable[[Turn], None] = lambda _turn: None,
    ) -> None:
        """`version` tells the live policy version; it is asked when a request leaves and when its answer is in.

        `traffic`: what all sessions beside this one ask for together. `heard` is told each turn when it is recorded.
        """
        self.problem = problem
        self.turns = Turns()
        self.in_flight = 0
        """Replies that the policy was asked for."""
        self._policy = policy
        self._chat = chat
        self._sampling = sampling
        self._version = version
        self._gateway = gateway
        self._traffic = traffic or Traffic()
        self._heard = heard
        self._address: SessionAddress | None = None
        self._is_over = False
        self._stop_reason: StopReason | None = None
        self._began = time.monotonic()
        self._waits: list[tuple[float, float]] = []
        """When the policy was asked and when its replies were there, since the session began."""
        self._facts = FinishedRollout(token_ids=[], loss_mask=[], inference_logprobs=[])

    async def address(self) -> SessionAddress:
        """Where programs play this session, until it ends: with the OpenAI SDK, an agent framework, a script."""
        self._check_open()
        if self._gateway is None:
            raise SessionOver("This session has no gateway: whoever made it serves none.")
        if self._address is None:
            self._address = await self._gateway.admit(self)
        return self._address

    def check_fits(self, *, bytes_of_json: int = 0, messages: int = 0) -> None:
        """Refuse a conversation that is too long by these numbers alone, unread. Raises ContextFull."""
        limit = self._sampling.max_total_tokens
        if limit is not None and (bytes_of_json > limit * MOST_TOKEN_BYTES + SLACK_BYTES or messages > limit):
            self._stop_reason = StopReason.LENGTH
            raise ContextFull(f"The conversation is far longer than {limit} tokens.")

    def note(self, notes: JsonObject) -> None:
        """Keep a JSON object for the scoring. The last one counts."""
        self._facts.notes = notes

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
        stops: Stops = NO_STOPS,
        shared: bool = False,
    ) -> Asked:
        """Sample `n` replies; `deliver` records them. Raises EpisodeError: ContextFull, TurnsOver, PolicyError.

        `shared`: they are for as many sessions, one each.
        """
        self._check_size(messages, tools)
        told = list(self.problem.tools if tools is None else tools)
        parent, added = self.turns.find(messages, told)
        prompt: list[int] | None = None
        try:
            with boundary(ErrorKind.POLICY):
                if parent is not None and added:
                    before = parent.token_ids
                    prompt = await self._chat.extend(before, parent.completion, parent.conversation, added, told)
                    if prompt is not None and prompt[: len(before)] != before:
                        # Training on it would put logprobs next to tokens they do not belong to.
                        raise InvalidAnswer(
                            "The tokens of a further turn do not start with the tokens of the turns before."
                        )
                if prompt is None:
                    # The same again asks for another reply to it.
                    parent, added = None, list(messages)
                    prompt = await self._chat.render(messages, told)
        except ContextFull:  # by a server that renders: it does so no further than its context
            self._stop_reason = StopReason.LENGTH
            raise
        return await self._sample(parent, added, prompt, messages, told, n, max_tokens, stops, own=1 if shared else n)

    async def ask_tokens(
        self, prompt_token_ids: list[int], *, n: int = 1, max_tokens: int | None = None, stops: Stops = NO_STOPS
    ) -> Asked:
        """The same of a client that renders itself. What it said beside the replies is known as tokens only."""
        with boundary(ErrorKind.POLICY):
            await self._chat.ready()
        parent = self.turns.find_tokens(prompt_token_ids)
        return await self._sample(parent, [], prompt_token_ids, [], None, n, max_tokens, stops, own=n)

    def deliver(self, asked: Asked) -> list[Turn]:
        """Record the replies of a request: somebody has them now. Raises SessionOver."""
        self._check_open()
        self._check_turns(len(asked.completions))
        facts, self._stop_reason = self._facts, None
        is_first = not self.turns
        for completion in asked.completions:
            first = asked.sent if completion.first_policy_version is None else completion.first_policy_version
            last = asked.received if completion.last_policy_version is None else completion.last_policy_version
            facts.dispatch_policy_version = _extreme(min, facts.dispatch_policy_version, asked.sent, is_first)
            facts.first_policy_version = _extreme(min, facts.first_policy_version, first, is_first)
            facts.last_policy_version = _extreme(max, facts.last_policy_version, last, is_first)
            is_first = False
        facts.generation_s += asked.seconds
        began = asked.began - self._began
        self._waits.append((began, began + asked.seconds))
        turns = [
            self.turns.add(asked.parent, asked.added, asked.given, completion, reply, asked.tools)
            for completion, reply in zip(asked.completions, asked.replies, strict=True)
        ]
        for turn in turns:
            self._heard(turn)
        return turns

    def end(self) -> FinishedRollout:
        """End the session; return what it left, without a reward."""
        self._is_over = True
        if self._gateway is not None and self._address is not None:
            self._gateway.dismiss(self._address)
        rollout = msgspec.structs.replace(self._facts, messages=list(self.problem.messages), tools=self.problem.tools)
        rollout.spans = _spans(self._waits, time.monotonic() - self._began)
        self.turns.fill(rollout)
        if self._stop_reason is not None:
            rollout.stop_reason = self._stop_reason
        return rollout

    async def _sample(
        self,
        parent: Turn | None,
        added: list[Message],
        prompt_token_ids: list[int],
        messages: Sequence[Message],
        tools: list[JsonObject] | None,
        n: int,
        max_tokens: int | None,
        stops: Stops,
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
        asked = msgspec.structs.replace(sampling, max_tokens=limit, stops=stops, ends=self._chat.ends)
        began = time.monotonic()
        self.in_flight += own
        try:
            tokens = len(prompt_token_ids) + n * limit
            async with self._traffic.admitted(tokens, n // own):
                sent = self._version()
                with boundary(ErrorKind.POLICY):
                    completions, replies = await self._complete(prompt_token_ids, messages, tools, n, asked)
        finally:
            self.in_flight -= own
        known = 0 if parent is None else len(parent.token_ids)
        return Asked(
            parent=parent,
            added=added,
            prompt_token_ids=prompt_token_ids,
            given=prompt_token_ids[known:],
            tools=tools or [],
            completions=completions,
            replies=replies,
            sent=sent,
            received=self._version(),
            began=began,
            seconds=time.monotonic() - began,
        )

    async def _complete(
        self,
        prompt_token_ids: list[int],
        messages: Sequence[Message],
        tools: list[JsonObject] | None,
        n: int,
        sampling: SamplingParams,
    ) -> tuple[list[Completion], list[Message]]:
        """`n` replies, and what each says."""
        completions = await self._policy.sample(prompt_token_ids, n, sampling)
        if len(completions) != n:
            raise ValueError(f"the policy gave {len(completions)} replies for {n}")
        return completions, [self._chat.parse(prompt_token_ids, each, tools) for each in completions]

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
        if self._sampling.max_total_tokens is not None:
            self.check_fits(bytes_of_json=len(msgspec.json.encode((messages, tools))))


def _extreme(choose: Callable[[int, int], int], known: int | None, version: int | None, is_first: bool) -> int | None:
    """The oldest or newest version; None when one of them is not known."""
    if is_first:
        return version
    return None if known is None or version is None else choose(known, version)


def _spans(waits: list[tuple[float, float]], ended: float) -> list[Span]:
    """Where the time went: what was not spent waiting for the policy was the environment's."""
    spans: list[Span] = []
    at = 0.0
    for began, until in [*sorted(waits), (ended, ended)]:
        if began - at >= _SHORTEST_S:
            spans.append(_span(SpanKind.TOOLS, at, began))
        if until > began:
            spans.append(_span(SpanKind.MODEL, began, until))
        at = max(at, until)
    return spans[:_MAX_SPANS]


def _span(kind: SpanKind, began: float, until: float) -> Span:
    return Span(kind, round(began, 4), round(until - began, 4))
