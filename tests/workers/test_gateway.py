"""The gateway with real rows: whatever dies in between, a session is finished once or accounted for as failed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest
from django.contrib.auth.models import User
from django.db import OperationalError
from django.utils import timezone

from environments.types import Message, PlayedRollout, Problem, StopReason
from rollouts.models import AgentSession, Replica, Rollout, Run, ScoredGroup
from rollouts.services.outside import sessions
from rollouts.states import GroupState
from tests import store
from tests.factories import somebody
from tests.workers.making import make_server, make_started_run
from tests.workers.stub_server import StubServer, stub_server
from workers import gateway as gateways
from workers.chats import Chats
from workers.database import in_database
from workers.fleet import replica_pool
from workers.gateway import AgentGateway, application

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]  # each has a run with a server

ASKED = {"messages": [{"role": "user", "content": "tac?"}]}


@pytest.fixture
def stub() -> Iterator[StubServer]:
    with stub_server() as server:
        yield server


@pytest.fixture
def run(stub: StubServer) -> Run:
    run = make_started_run()
    make_server(run, stub.url)
    return run


def opened(run: Run, group_size: int = 1) -> sessions.OpenedSession:
    problem = Problem(key="cat", messages=[Message("user", "tac?")])
    options: dict[str, Any] = {"environment": "mine", "deadline_s": 60.0, "actor": "api:agent", "owner": somebody()}
    return sessions.open_session(run, problem, group="g", group_size=group_size, **options)


@asynccontextmanager
async def served() -> AsyncIterator[httpx.AsyncClient]:
    """A gateway that just started."""
    gateway = AgentGateway()
    keeping = asyncio.create_task(gateway.keep())
    transport = httpx.ASGITransport(application(gateway))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
            yield http
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await gateway.aclose()


def play(act: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), served() as http:
            await act(http)

    asyncio.run(run())


async def chat(http: httpx.AsyncClient, key: str, **more: Any) -> httpx.Response:
    return await http.post(f"/s/{key}/v1/chat/completions", json=ASKED | more)


async def finish(http: httpx.AsyncClient, key: str, **how: Any) -> httpx.Response:
    return await http.post(f"/s/{key}/finish", json=how)


def test_an_episode_from_outside_becomes_a_rollout_of_its_run(run: Run) -> None:
    one, other = opened(run, 2), opened(run, 2)

    async def act(http: httpx.AsyncClient) -> None:
        assert (await chat(http, one.key)).json()["choices"][0]["message"]["content"] == "gg"
        assert (await chat(http, other.key)).is_success
        assert (await finish(http, one.key, reward=1.0, metrics={"calls": 2})).json() == {"group_complete": False}
        assert (await finish(http, other.key, reward=0.0)).json() == {"group_complete": True}
        assert (await chat(http, one.key)).status_code == 401

    play(act)
    group = ScoredGroup.objects.get(run=run)
    assert (group.key, group.state, group.reward_mean) == ("g", GroupState.READY, 0.5)
    first = group.rollouts.order_by("index")[0]
    assert (first.metrics, first.trained_token_count, first.replica) == ({"calls": 2.0}, 2, Replica.objects.get().name)
    assert (first.dispatch_policy_version, first.first_policy_version, first.last_policy_version) == (0, 0, 0)
    assert first.messages[-1] == {"role": "assistant", "content": "gg"}


def test_an_error_or_silence_is_a_failed_rollout(run: Run) -> None:
    broken, silent = opened(run, 2), opened(run, 2)

    async def act(http: httpx.AsyncClient) -> None:
        await chat(http, broken.key)
        assert (await finish(http, broken.key, error="the browser crashed")).is_success
        assert (await finish(http, silent.key, reward=1.0)).is_success

    play(act)
    first, second = Rollout.objects.order_by("index")
    assert (first.stop_reason, first.error["message"], first.reward) == (StopReason.ERROR, "the browser crashed", None)
    assert "Nothing it sampled is known" in second.error["message"]


def test_a_gateway_that_died_costs_what_its_sessions_had_sampled_and_no_session(run: Run) -> None:
    one = opened(run)

    async def begin(http: httpx.AsyncClient) -> None:
        assert (await chat(http, one.key)).is_success

    async def go_on(http: httpx.AsyncClient) -> None:
        assert (await chat(http, one.key)).is_success
        assert (await finish(http, one.key, reward=1.0)).json() == {"group_complete": True}

    play(begin)
    play(go_on)
    assert Rollout.objects.get().trained_token_count == 2


def test_a_finish_that_the_database_missed_is_made_up_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    one = opened(run)
    real = sessions.finish

    def away(*_: Any) -> bool:
        raise OperationalError("gone")

    async def act(http: httpx.AsyncClient) -> None:
        await chat(http, one.key)
        monkeypatch.setattr(sessions, "finish", away)
        assert (await finish(http, one.key, reward=1.0)).status_code == 503
        monkeypatch.setattr(sessions, "finish", real)
        assert (await finish(http, one.key, reward=1.0)).json() == {"group_complete": True}

    play(act)
    assert Rollout.objects.get().reward == 1.0


def test_what_makes_no_sense_is_refused_and_may_be_mended(run: Run) -> None:
    one = opened(run)

    async def act(http: httpx.AsyncClient) -> None:
        await chat(http, one.key)
        for how in ({}, {"reward": 1.0, "error": "x"}, {"reward": "much"}, {"rewrad": 1.0}):
            assert (await finish(http, one.key, **how)).status_code == 422
        assert (await http.post(f"/s/{one.key}/finish", content=b"{")).status_code == 422
        bad = await finish(http, one.key, reward=1e300)
        assert bad.status_code == 422
        assert "reward" in bad.json()["error"]["message"]
        assert (await finish(http, one.key, reward=1.0)).is_success

    play(act)
    assert Rollout.objects.get().reward == 1.0


def test_a_finish_whose_answer_was_lost_may_be_repeated(run: Run) -> None:
    one = opened(run)

    async def act(http: httpx.AsyncClient) -> None:
        await chat(http, one.key)
        for reward in (1.0, 0.5):
            assert (await finish(http, one.key, reward=reward)).json() == {"group_complete": True}

    play(act)
    assert Rollout.objects.get().reward == 1.0


def test_a_finish_after_the_deadline_is_told_to_be_too_late(run: Run) -> None:
    one = opened(run)
    past = {"opened_at": timezone.now() - timedelta(hours=2), "expires_at": timezone.now() - timedelta(hours=1)}

    async def act(http: httpx.AsyncClient) -> None:
        await in_database(age)
        await in_database(sessions.close_due, run)
        late = await finish(http, one.key, reward=1.0)
        assert (late.status_code, late.json()["error"]["code"]) == (410, "session_over")

    def age() -> None:
        with store.beyond_rights():
            AgentSession.objects.filter(pk=one.row.pk).update(**past)

    play(act)
    assert Rollout.objects.get().reward is None


def test_strangers_learn_nothing_and_a_session_that_is_over_is_over(run: Run) -> None:
    one = opened(run)

    async def act(http: httpx.AsyncClient) -> None:
        for key in ("x", "x" * 32, "x" * 500, one.row.key_digest):
            assert (await chat(http, key)).status_code == 401
            assert (await finish(http, key, reward=1.0)).status_code == 401
        await in_database(sessions.finish, one.row.pk, failed)
        assert (await chat(http, one.key)).status_code == 401

    failed = PlayedRollout(token_ids=[], loss_mask=[], inference_logprobs=[], stop_reason=StopReason.ERROR)
    play(act)
    assert AgentSession.objects.get().finished_at is not None


def test_a_session_of_somebody_who_was_dismissed_ends_here_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "RECHECK_S", 0.1)
    monkeypatch.setattr(gateways, "REFRESH_S", 0.1)
    one = opened(run)

    async def act(http: httpx.AsyncClient) -> None:
        assert (await chat(http, one.key)).is_success
        await in_database(User.objects.filter(pk=somebody_pk).update, is_active=False)
        while (await chat(http, one.key)).status_code != 401:
            await asyncio.sleep(0.05)

    somebody_pk = somebody().pk
    play(act)


def test_a_replica_that_dies_costs_a_session_time(run: Run, stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_pool, "_LONGEST_PAUSE_S", 0.2)
    one, other = opened(run, 2), opened(run, 2)

    async def act(http: httpx.AsyncClient) -> None:
        assert (await chat(http, one.key)).is_success
        stub.mode = "error"
        asking = asyncio.create_task(chat(http, other.key))
        done, _ = await asyncio.wait({asking}, timeout=0.5)
        assert not done
        stub.mode = "ok"
        assert (await asking).is_success

    play(act)


def test_who_waits_for_the_first_server_of_a_run_is_not_forgotten(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_pool, "_LONGEST_PAUSE_S", 0.2)
    monkeypatch.setattr(gateways, "REFRESH_S", 0.02)
    monkeypatch.setattr(gateways, "IDLE_S", 0.1)
    of = Chats.of

    async def asks_the_server(chats: Chats, policy: Any) -> Any:
        """As for a family of models that is known."""
        await policy.render([Message("user", "x")])
        return await of(chats, policy)

    monkeypatch.setattr(Chats, "of", asks_the_server)
    run = make_started_run()
    one = opened(run)

    async def act(http: httpx.AsyncClient) -> None:
        asking = asyncio.create_task(chat(http, one.key))
        done, _ = await asyncio.wait({asking}, timeout=0.5)
        assert not done
        await in_database(make_server, run, stub.url)
        assert (await asyncio.wait_for(asking, 20)).is_success

    play(act)
