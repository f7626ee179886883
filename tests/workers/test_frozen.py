"""Models that a run serves beside its policy: asked by its episodes, kept through kills, never changed, then ended."""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from environments.errors import EndpointRefused, EndpointUnavailable
from environments.types import ChatAnswer, Message
from rollouts.models import MetricPoint, Purpose, Replica, ReplicaKind, Rollout, Run, ScoredGroup
from rollouts.selectors import fleet, runs
from rollouts.selectors import trials as selected
from rollouts.services.runs import life, replicas
from rollouts.states import GroupState, ReplicaState, RunState
from tests.factories import words
from tests.workers.making import make_run, make_server, make_started_run
from tests.workers.reconciling import (
    STAY,
    child_pid,
    is_live,
    processes,
    ready_server,
    reconciling,
    state,
    write_version,
)
from tests.workers.stub_server import stub_server, told
from tests.workers.test_episodes import driving
from tests.workers.waiting import eventually
from workers.database import in_database
from workers.fleet import frozen, inference, replica_pool
from workers.others import GroupOthers, OthersOfRun

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]  # drivers live for seconds
RIVAL = {"name": "rival", "model": "start"}
MATCH = {"environments": [{"name": "kuhn_poker", "seats": {"first": "rival"}}], "sampling__max_turns": 3}
HELLO = [Message("user", "hello")]


@pytest.fixture
def counted() -> Counter[str]:
    return Counter()


def asking(run: Run, act: Callable[[GroupOthers], Awaitable[Any]], counted: Counter[str]) -> Any:
    """What comes of it in a group of the run."""

    async def acted() -> Any:
        of_run = OthersOfRun(run)
        try:
            return await act(of_run.for_group(2, lambda key, value: counted.update({key: int(value)})))
        finally:
            await of_run.aclose()

    return asyncio.run(acted())


def test_a_frozen_model_is_asked_over_its_server_and_counted_and_kept_as_an_endpoint_is(counted: Counter[str]) -> None:
    async def act(group: GroupOthers) -> list[ChatAnswer]:
        return [await group.reply("rival", HELLO, seed=seed, max_tokens=99_999) for seed in (1, 1, None)]

    run = make_started_run(policies=[{**RIVAL, "max_tokens": 50_000}])
    with stub_server() as own, stub_server() as rival:
        make_server(run, own.url)
        make_server(run, rival.url, policy="rival")
        answers = asking(run, act, counted)
    assert {answer.message.text for answer in answers} == {rival.says}
    assert counted == {"policies/rival/asks": 2, "policies/rival/cached": 1, "policies/rival/tokens": 20}
    assert (len(rival.chats), own.chats) == (2, [])
    # No seed: on CPU vLLM may die of one. No more than its context: vLLM would refuse that.
    assert {(body["model"], body["max_tokens"], "seed" in body) for body in rival.chats} == {("policy", 2048, False)}


def test_a_frozen_model_is_shown_tools_for_which_its_server_needs_no_parser(counted: Counter[str]) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}

    async def act(group: GroupOthers) -> list[ChatAnswer]:
        return [await group.reply("rival", HELLO, tools) for tools in ([tool], [])]

    run = make_started_run(policies=[RIVAL])
    with stub_server() as rival:
        make_server(run, rival.url, policy="rival")
        asking(run, act, counted)
    told = [{key: body[key] for key in ("tools", "tool_choice") if key in body} for body in rival.chats]
    assert told == [{"tools": [tool], "tool_choice": "none"}, {}]


def test_who_asks_a_server_that_is_not_ready_yet_waits_for_it(counted: Counter[str]) -> None:
    run = make_started_run(policies=[RIVAL])

    async def act(group: GroupOthers) -> str:
        asked = asyncio.ensure_future(group.reply("rival", HELLO))
        await asyncio.sleep(0.5)
        assert not asked.done()
        await in_database(lambda: make_server(run, rival.url, policy="rival"))
        return (await asked).message.text

    with stub_server() as rival:
        assert asking(run, act, counted) == rival.says
    assert counted["policies/rival/failed"] == 0


def test_the_least_busy_server_is_asked_and_another_where_one_fails(counted: Counter[str]) -> None:
    async def act(group: GroupOthers) -> None:
        await asyncio.gather(*(group.reply("rival", HELLO) for _ in range(4)))
        bad.mode = "error"
        await asyncio.gather(*(group.reply("rival", HELLO) for _ in range(4)))

    run = make_started_run(policies=[{**RIVAL, "replicas": 2}])
    with stub_server() as bad, stub_server() as good:
        bad.delay_s = good.delay_s = 0.2
        make_server(run, bad.url, policy="rival")
        make_server(run, good.url, policy="rival", slot=1)
        asking(run, act, counted)
    assert (len(bad.chats), len(good.chats)) == (2, 6)
    assert (counted["policies/rival/asks"], counted["policies/rival/failed"]) == (8, 0)


def test_who_waits_for_an_answer_of_a_server_that_is_lost_asks_another(
    counted: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frozen, "_FRESH_S", 0.0)
    run = make_started_run(policies=[{**RIVAL, "replicas": 2}])

    async def act(group: GroupOthers) -> list[ChatAnswer]:
        asked = asyncio.ensure_future(group.reply("rival", HELLO))
        while not gone.asked:
            await asyncio.sleep(0.02)
        await in_database(lambda: make_server(run, other.url, policy="rival", slot=1))
        await in_database(lambda: replicas.lost(first, exit_code=None, reason=words("its node failed")))
        # Whoever asks next sees what became of it.
        return [await group.reply("rival", HELLO), await asked]

    with stub_server() as gone, stub_server() as other:
        gone.mode = "hang"
        first = make_server(run, gone.url, policy="rival")
        assert [answer.message.text for answer in asking(run, act, counted)] == [other.says] * 2
    assert counted["policies/rival/failed"] == 0


def test_patience_with_servers_that_stay_away_has_an_end(
    counted: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_pool, "PATIENCE_S", 0.5)
    run = make_started_run(policies=[RIVAL])

    async def act(group: GroupOthers) -> None:
        with pytest.raises(EndpointUnavailable, match="No server of the policy rival answered"):
            await group.reply("rival", HELLO)

    asking(run, act, counted)
    assert counted["policies/rival/failed"] == 1


def test_a_refusal_is_told_at_once_and_shows_neither_address_nor_key(
    counted: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_started_run(policies=[RIVAL])

    async def act(group: GroupOthers) -> str:
        with pytest.raises(EndpointRefused) as refused:
            await group.reply("rival", HELLO)
        return str(refused.value)

    with stub_server() as rival:
        server = make_server(run, rival.url, policy="rival")
        rival.mode = "refuse"
        said = asking(run, act, counted)
    assert said == f"Server {server.name} answered 400: told to refuse"


def test_what_is_said_of_a_runs_servers_means_those_of_its_own_policy() -> None:
    run = make_started_run(policies=[RIVAL])
    rival = make_server(run, "http://127.0.0.1:1", policy="rival")
    assert rival.name == f"inference-rival-0-{rival.pk}"
    assert list(fleet.list_serving(run)) == []
    assert not selected.answering(Run.objects.all()).exists(), "no trial is played on it"
    own = make_server(run, "http://127.0.0.1:1")
    assert list(fleet.list_serving(run)) == [own]
    assert list(fleet.list_alive(run)) == [own, rival]
    replicas.suspect(rival, reason=words("late"))
    assert "of the policy rival does not answer" in runs.health(run).sentence


def test_a_frozen_model_in_a_seat_survives_the_kill_of_its_server_and_never_gets_a_version(stand_ins: None) -> None:
    run = make_run(**MATCH, policies=[RIVAL])
    with reconciling():
        own, rival = ready_server(run), ready_server(run, policy="rival")
        eventually(is_live(run, 0))
        run.refresh_from_db()
        settled = ScoredGroup.objects.filter(run=run, purpose=Purpose.TRAIN).exclude(state=GroupState.PLAYING)
        with driving(run):
            eventually(lambda: settled.count() >= 1)
            os.kill(child_pid(rival), signal.SIGKILL)
            write_version(run, 1)
            eventually(is_live(run, 1))
            before = settled.count()
            eventually(lambda: settled.count() > before)
            again = ready_server(run, other_than=rival.pk, policy="rival")
        own.refresh_from_db()
        assert (own.loaded_version, again.loaded_version, again.slot) == (1, None, 0)
        of_rival, of_own = told(again.base_url), told(own.base_url)
        assert (of_rival["loads"], len(of_own["loads"])) == ([], 1)
        life.request_stop(run, actor="user:ada")
        eventually(lambda: state(run) == RunState.STOPPED)
    assert not processes(run)
    assert set(Replica.objects.filter(run=run).values_list("policy", "state")) == {
        ("", ReplicaState.EXITED),
        ("rival", ReplicaState.LOST),
        ("rival", ReplicaState.EXITED),
    }
    seats = set(Rollout.objects.filter(group__run=run).values_list("seat", "error_kind"))
    assert seats == {("second", "")}
    assert sum(MetricPoint.objects.filter(run=run, key="policies/rival/asks").values_list("value", flat=True)) > 0
    assert not MetricPoint.objects.filter(run=run, key="policies/rival/failed").exists()


def test_a_run_goes_on_while_a_frozen_server_is_not_there(stand_ins: None, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = inference.argv

    def one_that_waits(*given: Any, **options: Any) -> list[str]:
        return [sys.executable, "-c", STAY] if options["frozen"] else argv(*given, **options)

    monkeypatch.setattr(inference, "argv", one_that_waits)
    run = make_run(policies=[RIVAL])
    with reconciling():
        eventually(is_live(run, 0))
        run.refresh_from_db()
        settled = ScoredGroup.objects.filter(run=run, purpose=Purpose.TRAIN).exclude(state=GroupState.PLAYING)
        with driving(run):
            eventually(lambda: settled.count() >= 2)
        assert Replica.objects.get(run=run, policy="rival").state == ReplicaState.STARTING


def test_as_many_servers_are_kept_as_each_policy_wants(stand_ins: None) -> None:
    run = make_run(policies=[{**RIVAL, "replicas": 2}, {"name": "judge", "endpoint": "elsewhere"}])
    with reconciling():
        ready_server(run)
        eventually(lambda: fleet.list_serving(run, policy="rival").count() == 2)
    rows = Replica.objects.filter(run=run, kind=ReplicaKind.INFERENCE).values_list("policy", "slot")
    assert sorted(rows) == [("", 0), ("rival", 0), ("rival", 1)]
