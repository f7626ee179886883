"""The policy that episodes are played against: any ready inference replica of a run, and another when one fails.

    group ──▶ GroupPolicy ──▶ the least busy replica ──(no answer)──▶ back-off ──▶ another, or the same once it is back

A killed server therefore costs the groups on it time, not their lives: their leases are renewed meanwhile.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from environments.config import SamplingParams
from environments.errors import InvalidAnswer, PolicyUnavailable
from environments.policy import Completion, OpenAIPolicy
from environments.types import JsonObject, Message
from rollouts.models import Replica, Run
from rollouts.selectors import fleet
from rollouts.services.runs import answers
from workers.database import in_database
from workers.fleet.inference import SERVED_MODEL
from workers.fleet.keys import key_of

log = logging.getLogger(__name__)

PATIENCE_S = 600.0
"""Seconds for which a group waits for a replica that answers, besides those in which one was asked: a large model may
take minutes to restart."""
REQUEST_TIMEOUT_S = 600.0
"""At least. A long reply on a slow machine is no failure; the reconciler ends a server that hangs, and so the wait."""
MAX_INVALID_ANSWERS = 3
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_LOOK_S = 0.2

T = TypeVar("T")


class ReplicaClient(Protocol):
    """Asks one replica."""

    async def aclose(self) -> None:
        """Close its connections."""
        ...


C = TypeVar("C", bound=ReplicaClient)


def api_key(replica: Replica) -> str:
    """The key a replica demands."""
    return key_of(str(replica.token))


def longest_request_s(run: Run) -> float:
    """For which one answer is waited for: no shorter than a group of the run may take."""
    return max([REQUEST_TIMEOUT_S, *(each.timeout_s for each in run.parsed.environments)])


class PooledReplica(Generic[C]):
    """One inference replica, as this driver sees it."""

    def __init__(self, replica: Replica, client: C) -> None:
        self.id = replica.pk
        self.name = replica.name
        self.client = client
        self.version = replica.loaded_version
        self.serving = True
        self.answered = False
        """Since the last refresh. Answers to episodes count as passed health checks."""
        self.in_flight = 0
        """Replies requested and not yet received."""
        self.failures = 0
        self.not_before = 0.0
        """Monotonic time until which nothing is sent to it, after a failure."""

    def succeeded(self) -> None:
        """It has answered."""
        self.failures = 0
        self.answered = True

    def failed(self) -> None:
        """Send it nothing for a while: exponential back-off, reset by an answer."""
        self.not_before = time.monotonic() + min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**self.failures)
        self.failures += 1


class PolicyPool(Generic[C]):
    """The replicas of one of a run's policies that work may be sent to. Lives on one event loop."""

    def __init__(self, run: Run, policy: str, client: Callable[[Replica], C]) -> None:
        """`policy`: as `Replica.policy`; `client` makes what asks one of them."""
        self._run = run
        self._policy = policy
        self._client = client
        self._replicas: dict[str, PooledReplica[C]] = {}

    async def refresh(self) -> None:
        """Read from the database which replicas are ready and what they serve, and record which have answered."""
        found = await in_database(lambda: list(fleet.list_serving(self._run, policy=self._policy)))
        rows, answered = {row.name: row for row in found}, list[Replica]()
        for name, row in rows.items():
            pooled = self._replicas.get(name)
            if pooled is None:
                pooled = self._replicas[name] = PooledReplica(row, self._client(row))
            pooled.version = row.loaded_version
            if pooled.answered:
                pooled.answered = False
                answered.append(row)
        if answered:
            await in_database(answers.note, answered)
        for name, pooled in self._replicas.items():
            pooled.serving = name in rows
        await self._cut([pooled for pooled in self._replicas.values() if not pooled.serving])

    async def _cut(self, left: list[PooledReplica[C]]) -> None:
        """Close the connections to replicas that serve no more. One that is suspect may still answer what it was asked;
        of one that has ended nobody might hear even that, where its node is gone."""
        busy = [pooled.id for pooled in left if pooled.in_flight]
        over = await in_database(lambda: {row.pk for row in fleet.list_ended(busy)}) if busy else set[int]()
        for pooled in left:
            if not pooled.in_flight or pooled.id in over:
                self._replicas.pop(pooled.name, None)
                await pooled.client.aclose()

    def pick(self) -> PooledReplica[C] | None:
        """Return the replica with the fewest requests in flight among those not backing off; None: there is none."""
        now = time.monotonic()
        usable = [each for each in self._replicas.values() if each.serving and each.not_before <= now]
        return min(usable, key=lambda each: (each.in_flight, each.name), default=None)

    async def aclose(self) -> None:
        """Cut every connection."""
        for pooled in self._replicas.values():
            await pooled.client.aclose()
        self._replicas = {}


class ReplicaPool(PolicyPool[OpenAIPolicy]):
    """The replicas of a run's own policy."""

    def __init__(self, run: Run, *, request_timeout_s: float | None = None) -> None:
        """`request_timeout_s` if not `longest_request_s`."""
        timeout_s = request_timeout_s or longest_request_s(run)

        def client(replica: Replica) -> OpenAIPolicy:
            most, key = run.parsed.inference.max_num_seqs, api_key(replica)
            return OpenAIPolicy(replica.base_url, SERVED_MODEL, api_key=key, timeout_s=timeout_s, max_num_seqs=most)

        super().__init__(run, "", client)


class GroupPolicy:
    """The `Policy` of one group: stays with a replica while it answers, so that the prompt is cached there."""

    def __init__(self, pool: ReplicaPool, *, oldest_version: int) -> None:
        self._pool = pool
        self._oldest_version = oldest_version
        self._replica: PooledReplica[OpenAIPolicy] | None = None

    @property
    def replica(self) -> str:
        """Name of the replica that answered last."""
        return self._replica.name if self._replica else ""

    def version(self) -> int:
        """The policy version requests go to now: what the replica is known to serve, at least what was live before."""
        replica = self._replica or self._pool.pick()
        served = replica.version if replica else None
        return max(self._oldest_version, served if served is not None else 0)

    async def render(self, messages: Sequence[Message], tools: Sequence[JsonObject] = ()) -> list[int]:
        return await self._ask(lambda policy: policy.render(messages, tools))

    async def extend(
        self,
        token_ids: list[int],
        messages: Sequence[Message],
        added: Sequence[Message],
        tools: Sequence[JsonObject] = (),
    ) -> list[int]:
        return await self._ask(lambda policy: policy.extend(token_ids, messages, added, tools))

    async def sample(self, prompt_token_ids: list[int], n: int, sampling: SamplingParams) -> list[Completion]:
        return await self._ask(lambda policy: policy.sample(prompt_token_ids, n, sampling), replies=n)

    async def _ask(self, request: Callable[[OpenAIPolicy], Awaitable[T]], *, replies: int = 1) -> T:
        """Request until a replica answers. Raises `PolicyUnavailable` with the last failure after PATIENCE_S, and
        `InvalidAnswer` after MAX_INVALID_ANSWERS."""
        expires = time.monotonic() + PATIENCE_S
        last: PolicyUnavailable | None = None
        invalid = 0
        while True:
            pooled = await self._choose(expires, last)
            pooled.in_flight += replies
            asked_at = time.monotonic()
            try:
                answer = await request(pooled.client)
            except PolicyUnavailable as error:
                log.info("%s: %s", pooled.name, error)
                pooled.failed()
                expires += time.monotonic() - asked_at
                if time.monotonic() >= expires:
                    raise
                last = error
            except InvalidAnswer as error:
                log.warning("%s gave an answer that cannot be used: %s", pooled.name, error)
                pooled.failed()
                invalid += 1
                if invalid >= MAX_INVALID_ANSWERS:
                    raise
            else:
                pooled.succeeded()
                return answer
            finally:
                pooled.in_flight -= replies
            self._replica = None

    async def _choose(self, expires: float, last: PolicyUnavailable | None) -> PooledReplica[OpenAIPolicy]:
        pooled = self._replica
        if pooled is None or not pooled.serving or pooled.not_before > time.monotonic():
            while (pooled := self._pool.pick()) is None:
                if time.monotonic() >= expires:
                    why = f" The last one asked failed: {last}" if last else ""
                    raise PolicyUnavailable(f"No inference replica answered for {PATIENCE_S:.0f} s.{why}") from last
                await asyncio.sleep(_LOOK_S)
            self._replica = pooled
        return pooled
