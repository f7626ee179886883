"""What episodes ask beside the policy is asked from the driver: within a budget, once, and as long as it is allowed."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from django.db import OperationalError

from environments.errors import AsksOver, EndpointError, EndpointRefused, EndpointUnavailable, NoSuchPolicy
from environments.types import ChatAnswer, Message
from rollouts.errors import Invalid
from rollouts.services import endpoints
from tests.chat_server import ChatServer, completion, serving
from tests.factories import make_project
from tests.workers.making import make_run
from workers import others
from workers.others import GroupOthers, OthersOfRun

pytestmark = pytest.mark.django_db(transaction=True)
KEY = "sk-canary-4711"
HELLO = [Message("user", "hello")]


def add(server: ChatServer, name: str = "judge-api", **changed: Any) -> None:
    given = {"base_url": server.base_url, "model": "m", "key_reference": "env:TEST_JUDGE_API_KEY", "is_for_all": True}
    endpoints.add(name=name, actor="user:root", **given | changed)


@pytest.fixture
def counted() -> Counter[str]:
    return Counter()


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TEST_JUDGE_API_KEY", KEY)
    return KEY


def playing(
    act: Callable[[GroupOthers], Awaitable[Any]], counted: Counter[str], rollouts: int = 2, **policy: Any
) -> Any:
    """What comes of it in a group of a run whose config names a judge."""
    run = make_run(policies=[{"name": "judge", "endpoint": "judge-api", **policy}])

    async def acted() -> Any:
        of_run = OthersOfRun(run)
        try:
            return await act(of_run.for_group(rollouts, lambda key, value: counted.update({key: int(value)})))
        finally:
            await of_run.aclose()

    return asyncio.run(acted())


def test_the_same_question_is_asked_once_and_counted(counted: Counter[str]) -> None:
    async def act(group: GroupOthers) -> list[ChatAnswer]:
        together = await asyncio.gather(*(group.reply("judge", HELLO, seed=1) for _ in range(3)))
        again = await group.reply("judge", HELLO, seed=1)
        others = [await group.reply("judge", HELLO, seed=2), await group.reply("judge", HELLO, seed=None)]
        return [*together, again, *others]

    with serving(lambda body: f"answer to {body.get('seed')}") as server:
        add(server)
        answers = playing(act, counted)
    assert [answer.message.text for answer in answers] == ["answer to 1"] * 4 + ["answer to 2", "answer to None"]
    assert len(server.asked) == 3
    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    assert counted == {"policies/judge/asks": 3, "policies/judge/cached": 3, "policies/judge/tokens": 30}


def test_what_a_judge_thinks_and_calls_counts_among_what_is_kept(
    counted: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(others, "MOST_KEPT_BYTES", 20_000)
    long = "x" * 10_000
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": long}}
    answers = [completion("well"), completion("well", reasoning_content=long), completion(None, tool_calls=[call])]

    async def act(group: GroupOthers) -> None:
        for seed in range(len(answers)):
            for _ in range(2):
                await group.reply("judge", HELLO, seed=seed)

    with serving(lambda body: answers[body["seed"]]) as server:
        add(server)
        playing(act, counted)
    assert [body["seed"] for body in server.asked] == [0, 1, 1, 2, 2]


def test_failures_are_counted_and_never_kept(counted: Counter[str]) -> None:
    statuses = iter([400, 401])

    async def act(group: GroupOthers) -> str:
        for _ in range(2):
            with pytest.raises(EndpointRefused):
                await group.reply("judge", HELLO, seed=1)
        return (await group.reply("judge", HELLO, seed=1)).message.text

    with serving(lambda body: next(statuses, "well")) as server:
        add(server)
        assert playing(act, counted) == "well"
    assert (counted["policies/judge/asks"], counted["policies/judge/failed"]) == (3, 2)


def test_a_group_asks_no_more_and_no_longer_texts_than_it_may(counted: Counter[str]) -> None:
    async def act(group: GroupOthers) -> None:
        for _ in range(6):
            await group.reply("judge", HELLO, max_tokens=10_000, temperature=7.0)
        with pytest.raises(AsksOver, match=r"3 for each of its 2 rollouts.*raise max_asks"):
            await group.reply("judge", HELLO)

    async def at_length(group: GroupOthers) -> None:
        with pytest.raises(EndpointRefused, match="not sent"):
            await group.reply("judge", [Message("user", "x" * (2**20 + 1))])

    with serving(lambda body: "well") as server:
        add(server)
        playing(act, counted, max_asks=3, max_tokens=20)
        playing(at_length, counted)
    assert len(server.asked) == 6
    assert {(body["max_tokens"], body["temperature"]) for body in server.asked} == {(20, 2.0)}


def test_only_what_the_config_names_and_the_project_may_ask_is_asked(
    counted: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(group: GroupOthers) -> list[str]:
        said = []
        for name in ("judge", "judge-api", "\x00"):
            try:
                said.append((await group.reply(name, HELLO)).message.text)
            except EndpointError as error:
                said.append(f"{type(error).__name__}: {error}")
        return said

    with serving(lambda body: "well") as server:
        add(server)
        assert playing(act, counted)[0] == "well"
        monkeypatch.delenv("TEST_JUDGE_API_KEY")
        said = playing(act, counted)
        assert said[0].startswith(f"{EndpointUnavailable.__name__}: The key of endpoint judge-api is not there")
        assert "they name: judge" in said[1]
        endpoints.remove("judge-api", actor="user:root")
        assert playing(act, counted)[0].startswith(f"{NoSuchPolicy.__name__}: Policy judge: project ")
    assert len(server.asked) == 1


def test_what_is_removed_meanwhile_is_asked_no_longer(counted: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "KNOWN_S", 0.0)

    async def act(group: GroupOthers) -> None:
        await group.reply("judge", HELLO)
        await asyncio.to_thread(endpoints.remove, "judge-api", actor="user:root")
        with pytest.raises(NoSuchPolicy):
            await group.reply("judge", HELLO)

    with serving(lambda body: "well") as server:
        add(server)
        playing(act, counted)
    assert len(server.asked) == 1


def test_without_a_database_for_a_moment_what_is_known_is_asked(
    counted: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(others, "KNOWN_S", 0.0)

    def away(*_: Any) -> None:
        raise OperationalError("the server closed the connection unexpectedly")

    async def act(group: GroupOthers) -> list[str]:
        said = [(await group.reply("judge", HELLO)).message.text]
        monkeypatch.setattr(endpoints, "find", away)
        return [*said, (await group.reply("judge", HELLO)).message.text]

    async def first(group: GroupOthers) -> None:
        with pytest.raises(EndpointUnavailable, match="PostgreSQL"):
            await group.reply("judge", HELLO)

    with serving(lambda body: "well") as server:
        add(server)
        assert playing(act, counted) == ["well", "well"]
        playing(first, counted)
    assert counted["policies/judge/failed"] == 1


def test_a_launch_that_names_no_endpoint_of_its_project_is_refused_with_the_fix() -> None:
    config = make_run(policies=[{"name": "judge", "endpoint": "nobody"}]).parsed
    with pytest.raises(Invalid) as refused:
        endpoints.check(config, make_project())
    [(key, told)] = refused.value.fields.items()
    assert key == "policies.0.endpoint"
    assert "has no endpoint nobody: an administrator adds it with `rollyard endpoints add nobody`" in told
