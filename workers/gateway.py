"""The gateway for programs outside: one address for the sessions of every run, and where they are finished.

    POST /s/KEY/v1/chat/completions, ...   as `environments.gateway.app`
    POST /s/KEY/finish                     {"reward": 1.0, "metrics": {}} or {"error": "..."}

A session's turns are in memory until it is finished; then its rollout is stored, and only then is that answered. Should
this process die, a session that goes on begins a new record, and what it had sampled before trains nothing.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from django.db import DatabaseError, InterfaceError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from environments.chat.base import Chat
from environments.config import SamplingParams
from environments.errors import PolicyError
from environments.gateway.app import RefusedRequest, make_app, read_body
from environments.session import Session
from environments.types import ErrorKind, PlayedRollout, RolloutError, StopReason
from rollouts.errors import ControlPlaneError
from rollouts.models import AgentSession, Run
from rollouts.services.outside import sessions
from workers.chats import Chats
from workers.database import in_database
from workers.fleet.replica_pool import GroupPolicy, ReplicaPool

log = logging.getLogger(__name__)

MAX_FINISH_BYTES = 64 * 1024
REFRESH_S = 1.0
"""Between two looks at the replicas of runs that are played, and for sessions whose time is over."""
RECHECK_S = 20.0
"""Between two looks whether the sessions here may still be played: their owners may have been dismissed."""
IDLE_S = 300.0
"""A run of which no session was asked for so long is forgotten; it is found again."""
_DATABASE_ERRORS = (DatabaseError, InterfaceError)


class Finish(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How a session ended: a reward, or an error."""

    reward: float | None = None
    metrics: dict[str, float] = {}
    error: str | None = None


class Played(msgspec.Struct):
    """A session that is open here."""

    row_id: int
    run_id: int
    session: Session
    policy: GroupPolicy
    expires_at: float
    """By the monotonic clock."""
    left: PlayedRollout | None = None
    """What was played, once its end was asked for: scored and stored then, or when that is asked again."""


class _RunSide:
    """The replicas and the format of a run that is played."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.pool = ReplicaPool(run)
        self.chats = Chats(run.parsed.model.path)
        self.used_at = time.monotonic()
        self.waiting = 0
        """Requests for which there is nothing to play against yet."""
        self._ready = asyncio.Lock()
        self._was_refreshed = False

    async def policy(self, live_version: int) -> tuple[GroupPolicy, Chat]:
        """Something to play against, at least of this version. Raises PolicyError, or what the database raises."""
        self.waiting += 1
        try:
            async with self._ready:
                if not self._was_refreshed:
                    await self.pool.refresh()
                    self._was_refreshed = True
            policy = GroupPolicy(self.pool, oldest_version=max(live_version, 0))
            return policy, await self.chats.of(policy)
        finally:
            self.waiting -= 1
            self.used_at = time.monotonic()


class AgentGateway:
    """The open sessions of all runs. Belongs to one event loop."""

    def __init__(self) -> None:
        self._played: dict[str, Played] = {}
        self._runs: dict[int, _RunSide] = {}

    async def find(self, key: str) -> Session | None:
        """The session of a key: opened in the database, and not finished."""
        played = await self._find(key)
        return None if played is None or played.left is not None else played.session

    async def finish(self, key: str, how: Finish) -> bool:
        """Store what a session left; whether its group is complete. A second time changes nothing.

        Raises RefusedRequest, ControlPlaneError; after Invalid what was played may still be finished otherwise.
        """
        played = await self._find(key)
        if played is None:
            known = await in_database(sessions.find_finished, key)
            if known is None or sessions.has_lapsed(known):
                raise RefusedRequest(410, "session_over", "The session's time is over.")
            return known.grouped_at is not None
        if played.left is None:
            played.left = played.session.end()
        rollout = _scored(msgspec.structs.replace(played.left), played.policy.replica, how)
        is_complete: bool = await in_database(sessions.finish, played.row_id, rollout)
        self._forget(key)
        return is_complete

    async def knows(self, key: str) -> bool:
        """Whether a session has this key, open or finished. Raises RefusedRequest."""
        return await self._find(key) is not None or await in_database(sessions.find_finished, key) is not None

    async def keep(self) -> None:
        """Refresh replicas, and forget what is over, until it is cancelled."""
        checked_at = time.monotonic()
        while True:
            await asyncio.sleep(REFRESH_S)
            now = time.monotonic()
            for key in [key for key, played in self._played.items() if played.expires_at < now]:
                self._forget(key)
            if now - checked_at > RECHECK_S:
                checked_at = now
                await self._recheck()
            played_runs = {played.run_id for played in self._played.values()}
            for run_id, side in list(self._runs.items()):
                try:
                    if run_id in played_runs or side.waiting or now - side.used_at < IDLE_S:
                        await side.pool.refresh()
                    else:
                        del self._runs[run_id]
                        await side.pool.aclose()
                except _DATABASE_ERRORS as error:
                    log.warning("run %s: %s; trying again", side.run.key, error)

    async def _recheck(self) -> None:
        here = {played.row_id: key for key, played in self._played.items()}
        try:
            playable = await in_database(sessions.still_open, here)
        except _DATABASE_ERRORS as error:
            log.warning("cannot look whether sessions are still open (%s); trying again", error)
            return
        for row_id, key in here.items():
            if row_id not in playable:
                self._forget(key)

    async def aclose(self) -> None:
        """Cut every connection."""
        for side in self._runs.values():
            await side.pool.aclose()

    async def _find(self, key: str) -> Played | None:
        if (known := self._played.get(key)) is not None:
            return known
        if not 20 <= len(key) <= 64:
            return None
        try:
            row = await in_database(sessions.find_open, key)
            if row is None:
                return None
            side = self._runs.setdefault(row.run_id, _RunSide(row.run))
            policy, chat = await side.policy(row.run.live_version)
        except PolicyError as error:
            raise RefusedRequest(503, "policy_unavailable", str(error)) from error
        except _DATABASE_ERRORS as error:
            raise RefusedRequest(503, "unavailable", "The database is away for a moment; try again.") from error
        # Of two requests that come first, one opens it.
        return self._played.setdefault(key, _opened(row, policy, chat))

    def _forget(self, key: str) -> None:
        if (played := self._played.pop(key, None)) is not None and played.left is None:
            played.session.end()


def _opened(row: AgentSession, policy: GroupPolicy, chat: Chat) -> Played:
    config = row.run.parsed
    own = config.sampling_of(row.environment)
    sampling = SamplingParams(
        temperature=own.temperature,
        max_tokens=own.max_tokens,
        max_turns=own.max_turns,
        max_total_tokens=config.inference.max_model_len,
    )
    session = Session(sessions.problem_of(row), policy, chat, sampling, version=policy.version)
    left_s = row.expires_at.timestamp() - time.time()
    return Played(row.pk, row.run_id, session, policy, time.monotonic() + left_s)


def _scored(rollout: PlayedRollout, replica: str, how: Finish) -> PlayedRollout:
    rollout.replica = replica
    if how.error is None and how.reward is not None and rollout.token_ids:
        rollout.reward, rollout.metrics = how.reward, how.metrics
        return rollout
    told = how.error or "Nothing it sampled is known: it asked for nothing, or the gateway was restarted since."
    rollout.stop_reason = StopReason.ERROR
    rollout.error = RolloutError(kind=ErrorKind.ENVIRONMENT, type="AgentError", message=told[:2000])
    return rollout


def application(gateway: AgentGateway) -> Starlette:
    """The ASGI app."""
    app = make_app(gateway)

    async def finish(request: Request) -> Response:
        key = request.path_params["key"]
        if not await gateway.knows(key):
            raise RefusedRequest(401, "unknown_session", "No session has this key, or its time is over.")
        how = msgspec.json.decode(await read_body(request, MAX_FINISH_BYTES), type=Finish)
        if (how.reward is None) == (how.error is None):
            raise RefusedRequest(422, "invalid", "give a reward or an error")
        is_complete = await gateway.finish(key, how)
        return Response(msgspec.json.encode({"group_complete": is_complete}), media_type="application/json")

    app.router.routes.append(Route("/s/{key}/finish", _told(finish), methods=["POST"]))
    return app


def _told(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except RefusedRequest as refused:
            return refused.response()
        except (msgspec.MsgspecError, RecursionError) as error:
            return RefusedRequest(422, "invalid", f"The body does not fit: {error}.").response()
        except ControlPlaneError as error:
            fields: dict[str, Any] = error.fields
            words = "; ".join(f"{name} {fault}" for name, fault in fields.items())
            return RefusedRequest(error.status, error.code, f"{error.message} {words}".strip()).response()
        except _DATABASE_ERRORS:
            return RefusedRequest(503, "unavailable", "The database is away for a moment; try again.").response()

    return answer
