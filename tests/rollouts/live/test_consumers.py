"""The websocket of the pages, on a real Redis: who may listen, and what is said."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import connection
from django.test import Client
from django.utils import timezone

from controlplane.asgi import application
from rollouts import bell, consumers
from rollouts.models import Membership, Role, Run
from tests.factories import make_project, make_run, make_user

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

LONG_S = 15.0
SHORT_S = 0.4


class Page(ApplicationCommunicator):
    """A page's socket, signed in as a user or as nobody."""

    def __init__(
        self,
        user: User | None,
        origin: str = "http://testserver",
        host: str = "testserver",
        client: Client | None = None,
    ) -> None:
        client = client or Client()
        if user is not None:
            client.force_login(user)
        cookies = "; ".join(f"{name}={morsel.value}" for name, morsel in client.cookies.items())
        headers = [(b"host", host.encode()), (b"origin", origin.encode()), (b"cookie", cookies.encode())]
        scope = {"type": "websocket", "path": "/ws/", "query_string": b"", "headers": headers, "subprotocols": []}
        super().__init__(application, scope)

    async def connect(self) -> dict[str, Any]:
        """Open the socket; return the answer."""
        await self.send_input({"type": "websocket.connect"})
        answer: dict[str, Any] = await self.receive_output(LONG_S)
        return answer

    async def say(self, text: str | None = None, *, bytes_data: bytes | None = None) -> None:
        await self.send_input({"type": "websocket.receive", "text": text, "bytes": bytes_data})

    async def subscribe(self, *keys: str) -> None:
        await self.say(json.dumps({"subscribe": keys}))

    async def heard(self) -> dict[str, Any]:
        """The next thing the server says."""
        message: dict[str, Any] = json.loads((await self.receive_output(LONG_S))["text"])
        return message

    async def is_quiet(self) -> bool:
        return bool(await self.receive_nothing(SHORT_S))

    async def closed_with(self) -> int:
        answer = await self.receive_output(LONG_S)
        assert answer["type"] == "websocket.close"
        return int(answer["code"])

    async def leave(self) -> None:
        await self.send_input({"type": "websocket.disconnect", "code": 1005})
        await self.wait(LONG_S)


Story = Callable[[Page], Awaitable[None]]


def play(user: User | None, story: Story) -> None:
    """Open a socket, play the story on it, and close it."""
    page = Page(user)

    async def run() -> None:
        assert (await page.connect())["type"] == "websocket.accept"
        await story(page)
        await page.leave()

    asyncio.run(run())


async def ring(run: Run) -> None:
    """As if the run had changed."""
    await asyncio.to_thread(bell.ringer().ring, run.pk)


async def elsewhere(act: Callable[[], Any]) -> Any:
    def run() -> Any:
        try:
            return act()
        finally:
            connection.close()

    return await sync_to_async(run, thread_sensitive=False)()


@pytest.mark.parametrize("how", ["deactivated", "signed out", "session expired", "new password"])
def test_the_socket_of_somebody_who_may_no_longer_sign_in_is_closed(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(consumers, "BELIEVED_FOR_S", SHORT_S)
    user = make_user("vera")

    def dismiss() -> None:
        match how:
            case "deactivated":
                User.objects.filter(pk=user.pk).update(is_active=False)
            case "signed out":
                Session.objects.all().delete()
            case "session expired":
                Session.objects.update(expire_date=timezone.now())
            case _:
                user.set_unusable_password()
                user.save()

    async def story(page: Page) -> None:
        assert await page.is_quiet()
        await elsewhere(dismiss)
        assert await page.closed_with() == consumers.FORBIDDEN

    play(user, story)


def test_who_comes_from_elsewhere_is_refused() -> None:
    page = Page(make_user(), "https://evil.example")

    async def run() -> None:
        assert (await page.connect())["type"] == "websocket.close"

    asyncio.run(run())


def test_a_page_of_nobody_is_told_so_on_an_open_socket_and_nothing_else_whatever_it_says() -> None:
    """Of one that never opened it would hear nothing but that, and try for ever."""
    page = Page(None)

    async def run() -> None:
        await page.send_input({"type": "websocket.connect"})
        for message in ('{"subscribe": ["*"]}', "hello"):  # on their way before it hears
            await page.say(message)
        assert (await page.receive_output(LONG_S))["type"] == "websocket.accept"
        assert await page.closed_with() == consumers.FORBIDDEN
        await page.wait(LONG_S)  # over, though the page did not leave
        assert await page.is_quiet()

    asyncio.run(run())


def test_a_page_is_told_where_its_runs_stand_and_then_of_every_change() -> None:
    user, run = make_user(), make_run()

    async def story(page: Page) -> None:
        await page.subscribe(run.key)
        assert await page.heard() == {"run": run.key}
        await ring(run)
        assert await page.heard() == {"run": run.key}

    play(user, story)


def test_a_page_hears_only_of_runs_that_its_user_may_see() -> None:
    user = make_user()
    mine, theirs = make_run(), make_run(project=make_project("theirs"))

    async def story(page: Page) -> None:
        await page.subscribe("*", theirs.key)
        await page.subscribe(mine.key)
        assert (await page.heard())["run"] == mine.key
        await ring(theirs)
        assert await page.is_quiet()
        await ring(mine)
        assert (await page.heard())["run"] == mine.key

    play(user, story)


def make_witness(user: User) -> Run:
    """A run in a project of its own: a page that subscribed to it too has done all it was asked to when it hears."""
    project = make_project("witness")
    Membership.objects.create(user=user, project=project, role=Role.VIEWER)
    return make_run(project=project, name="witness")


def test_a_page_of_all_runs_hears_of_a_run_it_did_not_know() -> None:
    user = make_user()
    witness = make_witness(user)

    async def story(page: Page) -> None:
        await page.subscribe("*", witness.key)
        assert (await page.heard())["run"] == witness.key
        run = await elsewhere(make_run)
        await ring(run)
        assert (await page.heard())["run"] == run.key

    play(user, story)


def test_a_page_of_all_runs_goes_deaf_when_its_user_leaves_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "BELIEVED_FOR_S", 0.0)
    user, run = make_user(), make_run()
    witness = make_witness(user)

    async def story(page: Page) -> None:
        await page.subscribe("*", witness.key)
        assert (await page.heard())["run"] == witness.key
        await ring(run)
        assert (await page.heard())["run"] == run.key
        await elsewhere(Membership.objects.filter(project=run.project).delete)
        await ring(run)
        assert await page.is_quiet()

    play(user, story)


def test_many_changes_in_a_moment_are_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "INTERVAL_S", 1.0)  # a moment, for a machine that has much to do
    user, run, last = make_user(), make_run(), make_run(name="last")

    async def story(page: Page) -> None:
        await page.subscribe(run.key, "*")
        await page.heard()
        layer = bell.get_channel_layer()
        for _ in range(50):
            await layer.group_send(bell.group_of(run.key), {"type": "bell", "run": run.key})
        await layer.group_send(bell.ALL_RUNS, {"type": "bell", "run": last.key})
        heard = [await page.heard()]
        while heard[-1] != {"run": last.key}:
            heard.append(await page.heard())
        assert heard.count({"run": run.key}) <= 3

    play(user, story)


def test_a_page_hears_on_after_flushall() -> None:
    user, run = make_user(), make_run()

    async def story(page: Page) -> None:
        await page.subscribe(run.key)
        await page.heard()
        await asyncio.to_thread(redis.Redis.from_url(settings.REDIS_URL).flushall)
        await ring(run)
        assert (await page.heard())["run"] == run.key

    play(user, story)


@pytest.mark.parametrize(
    "message",
    [
        "",
        "hello",
        "[]",
        "null",
        "{}",
        '{"subscribe": "x"}',
        '{"subscribe": [1]}',
        '{"subscribe": ["a\\u0000"]}',
        "[" * 9999,
    ],
)
def test_a_message_that_is_none_closes_the_socket(message: str) -> None:
    user = make_user()

    async def story(page: Page) -> None:
        await page.say(message)
        assert await page.closed_with() == consumers.UNREADABLE

    play(user, story)


def test_a_message_of_bytes_closes_the_socket() -> None:
    async def story(page: Page) -> None:
        await page.say(bytes_data=b"\xff\0")
        assert await page.closed_with() == consumers.UNREADABLE

    play(make_user(), story)


def test_too_many_subscriptions_close_the_socket() -> None:
    async def story(page: Page) -> None:
        await page.subscribe(*["x"] * consumers.MAX_SUBSCRIPTIONS)
        await page.subscribe("y")
        assert await page.closed_with() == consumers.TOO_MANY

    play(make_user(), story)
