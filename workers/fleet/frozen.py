"""A model that is served beside a run's policy and never changed, as its episodes ask it.

    question ──▶ the least busy replica of the model ──(no answer)──▶ back-off ──▶ another, or the same once it is back

Where its replicas are, and with which key they are asked, comes from their rows alone.
"""

import asyncio
import logging
import time
from collections.abc import Sequence

import msgspec
from django.db import DatabaseError, InterfaceError

from environments.client.address import SCHEME
from environments.config import SamplingParams
from environments.endpoints.address import ChatEndpoint
from environments.endpoints.client import EndpointClient
from environments.errors import EndpointUnavailable
from environments.types import ChatAnswer, JsonObject, Message
from rollouts.models import Replica, Run
from workers.fleet import replica_pool
from workers.fleet.inference import SERVED_MODEL
from workers.fleet.replica_pool import PolicyPool, PooledReplica, api_key

log = logging.getLogger(__name__)

_FRESH_S = 1.0
"""Between two looks at which replicas are ready, while somebody asks."""
_LOOK_S = 0.2
_MOST_IN_FLIGHT = 1_000


class FrozenModel:
    """One of a run's `[[policies]]` that has a `model`. Belongs to one event loop; safe for many questions at once."""

    def __init__(self, run: Run, policy: str) -> None:
        self._name = policy
        self._context = run.parsed.inference.max_model_len
        timeout_s = replica_pool.longest_request_s(run)
        self._pool = PolicyPool(run, policy, lambda replica: _client(replica, timeout_s))
        self._looked_at = -_FRESH_S
        self._looking = asyncio.Lock()

    async def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[JsonObject] = (),
        *,
        sampling: SamplingParams,
        seed: int | None = None,
    ) -> ChatAnswer:
        """The next reply to a conversation. Raises as `EndpointClient.chat`.

        Waits for a replica that is starting, and for another after one that failed: up to `replica_pool.PATIENCE_S`.
        The `seed` is not sent on, for what `SamplingParams` says of it; whoever asks keeps answers by it.
        """
        # vLLM refuses to be asked for more than fits its context, and stops by itself where that is full.
        sampling = msgspec.structs.replace(sampling, max_tokens=min(sampling.max_tokens, self._context))
        expires = time.monotonic() + replica_pool.PATIENCE_S
        last: EndpointUnavailable | None = None
        while True:
            pooled = await self._choose(expires, last)
            pooled.in_flight += 1
            asked_at = time.monotonic()
            try:
                answer = await pooled.client.chat(messages, tools, sampling=sampling)
            except EndpointUnavailable as error:
                log.info("%s", error)
                pooled.failed()
                expires += time.monotonic() - asked_at
                if time.monotonic() >= expires:
                    raise
                last = error
            else:
                pooled.succeeded()
                return answer
            finally:
                pooled.in_flight -= 1

    async def aclose(self) -> None:
        """Cut every connection."""
        await self._pool.aclose()

    async def _choose(self, expires: float, last: EndpointUnavailable | None) -> PooledReplica[EndpointClient]:
        while True:
            await self._look()
            pooled = self._pool.pick()
            if pooled is not None:
                return pooled
            if time.monotonic() >= expires:
                why = f" The last one asked failed: {last}" if last else ""
                patience = f"{replica_pool.PATIENCE_S:.0f} s"
                raise EndpointUnavailable(f"No server of the policy {self._name} answered for {patience}.{why}")
            await asyncio.sleep(_LOOK_S)

    async def _look(self) -> None:
        async with self._looking:
            if time.monotonic() - self._looked_at < _FRESH_S:
                return
            try:
                await self._pool.refresh()
            except (DatabaseError, InterfaceError) as error:
                log.warning("policy %s: %s; asking those that are known", self._name, error)
            self._looked_at = time.monotonic()


def _client(replica: Replica, timeout_s: float) -> EndpointClient:
    base = replica.base_url
    target = ChatEndpoint(
        name=replica.name,
        base_url=base if base.startswith(SCHEME) else f"{base}/v1",
        model=SERVED_MODEL,
        max_in_flight=_MOST_IN_FLIGHT,
        timeout_s=timeout_s,
    )
    # Another replica may answer before this one would at a second try. Tools are told of, not parsed for: for anything
    # but `none` a server wants to know its parser.
    return EndpointClient(target, api_key(replica), tries=1, kind="Server", tool_choice="none")
