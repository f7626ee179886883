"""Who answers what the episodes of a run ask beside the policy: endpoints, and models that the run serves for it. They
are asked from here, with keys that end here.

    environment, wherever it plays ──▶ GroupOthers: budget, size ──▶ OthersOfRun: asked before? ──▶ EndpointClient
                                                                                                └─▶ FrozenModel

Which address a name stands for, and which key, is read again every half minute: what an administrator removes is asked
no longer, and a key that was changed is used.
"""

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from django.conf import settings
from django.db import DatabaseError, InterfaceError

from environments.config import SamplingParams, Stops
from environments.endpoints import keys
from environments.endpoints.client import EndpointClient
from environments.errors import AsksOver, EndpointError, EndpointRefused, EndpointUnavailable, NoSuchPolicy
from environments.types import ChatAnswer, JsonObject, Message
from rollouts.errors import NotFound
from rollouts.models import Run
from rollouts.services import endpoints
from trainers.run_config import PolicyRef
from workers.database import in_database
from workers.fleet.frozen import FrozenModel

log = logging.getLogger(__name__)

KNOWN_S = 30.0
AGAIN_S = 1.0
"""Until an address is looked for again where PostgreSQL did not answer: its short absence fails no group."""
MOST_KEPT_BYTES = 64 * 2**20
"""Of answers that are kept for whoever asks the same."""
MOST_PROMPT_BYTES = 2**20
"""Of a conversation that is sent: what a room asks costs somebody money."""
_LEAST_KEPT_BYTES = 1_000
"""What an answer counts for at least."""

Count = Callable[[str, float], None]
"""Told a metric key and what is added to it."""


class _Known(NamedTuple):
    client: EndpointClient
    key: str
    until: float


class OthersOfRun:
    """Of one driver, on one event loop."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._refs = {ref.name: ref for ref in run.parsed.policies}
        self._known: dict[str, _Known] = {}
        """By the name of the endpoint."""
        self._frozen = {ref.name: FrozenModel(run, ref.name) for ref in run.parsed.frozen.values()}
        self._finding = asyncio.Lock()
        self._replaced: list[EndpointClient] = []
        """What somebody may still wait for."""
        self._kept: OrderedDict[bytes, asyncio.Task[ChatAnswer]] = OrderedDict()
        """PolicyQuestion -> its answer, or who gets it; the last used is last."""
        self._kept_bytes = 0

    def for_group(self, rollouts: int, count: Count) -> "GroupOthers":
        """As the episodes of one group ask them. Every ask, token, kept answer and failure is counted."""
        return GroupOthers(self, rollouts, count)

    def ref(self, name: str) -> PolicyRef:
        """What the config says of one. Raises NoSuchPolicy."""
        found = self._refs.get(name)
        if found is None:
            known = ", ".join(sorted(self._refs)) or "none"
            raise NoSuchPolicy(f"The run's [[policies]] name no {name[:64]!r}; they name: {known}.")
        return found

    async def ask(self, ref: PolicyRef, body: "PolicyQuestion", count: Count) -> ChatAnswer:
        """The answer to a question: kept, on its way, or asked for now."""
        if body.seed is None:
            return await self._ask_now(ref, body, count)
        digest = hashlib.sha256(msgspec.msgpack.encode((ref.name, body))).digest()
        task = self._kept.get(digest)
        if task is not None:
            self._kept.move_to_end(digest)
            count(f"policies/{ref.name}/cached", 1)
        else:
            # Whoever asked first may give up; others wait for the same answer.
            task = self._kept[digest] = asyncio.create_task(self._ask_now(ref, body, count))
            task.add_done_callback(lambda done: self._keep(digest, done))
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        """Ask nothing more."""
        asking = [task for task in self._kept.values() if not task.done()]
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        for client in [*self._replaced, *(known.client for known in self._known.values())]:
            await client.aclose()
        for frozen in self._frozen.values():
            await frozen.aclose()
        self._known, self._replaced = {}, []

    async def _ask_now(self, ref: PolicyRef, body: "PolicyQuestion", count: Count) -> ChatAnswer:
        count(f"policies/{ref.name}/asks", 1)
        stops = Stops(strings=tuple(body.stops))
        sampling = SamplingParams(temperature=body.temperature, max_tokens=body.max_tokens, stops=stops)
        try:
            client = await self._client(ref)
            answer = await client.chat(body.messages, body.tools, sampling=sampling, seed=body.seed)
        except EndpointError:
            count(f"policies/{ref.name}/failed", 1)
            raise
        count(f"policies/{ref.name}/tokens", answer.prompt_tokens + answer.completion_tokens)
        return answer

    async def _client(self, ref: PolicyRef) -> EndpointClient | FrozenModel:
        """Of the model, or of the endpoint as it is now. Raises NoSuchPolicy, EndpointUnavailable."""
        if ref.model:
            return self._frozen[ref.name]
        async with self._finding:
            known = self._known.get(ref.endpoint)
            if known is not None and time.monotonic() < known.until:
                return known.client
            try:
                endpoint = await in_database(lambda: endpoints.find(self._run.project, ref.endpoint))
            except NotFound as error:
                raise NoSuchPolicy(f"Policy {ref.name}: {error}") from None
            except (DatabaseError, InterfaceError) as error:
                log.warning("endpoint %s was not read again: %s", ref.endpoint, error)
                if known is None:
                    told = f"Where endpoint {ref.endpoint} is cannot be read: PostgreSQL is not there."
                    raise EndpointUnavailable(told) from None
                self._known[ref.endpoint] = known._replace(until=time.monotonic() + AGAIN_S)
                return known.client
            try:
                key = await asyncio.to_thread(keys.read, endpoint.key_reference, settings.HOME.path)
            except keys.KeyMissing as error:
                log.warning("endpoint %s: %s", endpoint.name, error)
                fix = f"`rollyard endpoints check {endpoint.name}` says why"
                raise EndpointUnavailable(f"The key of endpoint {endpoint.name} is not there: {fix}.") from None
            if known is None or (known.client.endpoint, known.key) != (endpoint, key):
                if known is not None:
                    self._replaced.append(known.client)
                known = _Known(EndpointClient(endpoint, key), key, 0.0)
            self._known[ref.endpoint] = known._replace(until=time.monotonic() + KNOWN_S)
            return known.client

    def _keep(self, digest: bytes, done: "asyncio.Task[ChatAnswer]") -> None:
        """Keep an answer, and no failure; forget the ones that were not used for longest."""
        if done.cancelled() or done.exception() is not None:
            self._kept.pop(digest, None)
            return
        self._kept_bytes += _size(done.result())
        while self._kept_bytes > MOST_KEPT_BYTES:
            oldest = next((key for key, task in self._kept.items() if task.done()), None)
            if oldest is None:
                return
            self._kept_bytes -= _size(self._kept.pop(oldest).result())


class PolicyQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """All that an answer depends on, beside who gives it."""

    messages: list[Message]
    tools: list[JsonObject]
    max_tokens: int
    temperature: float
    seed: int | None
    stops: list[str] = []


class GroupOthers:
    """`environments.others.Others` for the episodes of one group, within what they may ask together."""

    def __init__(self, others: OthersOfRun, rollouts: int, count: Count) -> None:
        self._others = others
        self._rollouts = rollouts
        self._count = count
        self._asked: dict[str, int] = {}

    async def reply(
        self,
        name: str,
        messages: Sequence[Message],
        tools: Sequence[JsonObject] = (),
        *,
        max_tokens: int = 256,
        temperature: float = 0.0,
        seed: int | None = None,
    ) -> ChatAnswer:
        """As `others.reply`."""
        ref = self._others.ref(name)
        asked = self._asked[name] = self._asked.get(name, 0) + 1
        if asked > ref.max_asks * self._rollouts:
            fix = "raise max_asks of [[policies]]"
            most = f"{ref.max_asks} for each of its {self._rollouts} rollouts"
            raise AsksOver(f"The group has asked {name} as often as it may ({most}): {fix}.")
        question = PolicyQuestion(
            messages=list(messages),
            tools=list(tools),
            max_tokens=max(1, min(max_tokens, ref.max_tokens)),
            temperature=min(max(temperature, 0.0), 2.0),
            seed=seed,
        )
        if len(msgspec.json.encode(question)) > MOST_PROMPT_BYTES:
            raise EndpointRefused(f"What {name} was asked has more than {MOST_PROMPT_BYTES} bytes; it was not sent.")
        return await self._others.ask(ref, question, self._count)


def _size(answer: ChatAnswer) -> int:
    """Bytes that it takes at most, with what was thought and called: one character may take four."""
    return _LEAST_KEPT_BYTES + 4 * len(msgspec.msgpack.encode(answer))
