"""Who tries credentials that open nothing waits; who has one that does is not kept out by them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.web import pacing
from controlplane.web.serve import configured
from rollouts import consumers, guesses
from rollouts.doors.atropos import lookup
from rollouts.errors import TooManyFailures
from rollouts.models import ScoredGroup
from tests.factories import make_user
from tests.hostile import application
from tests.hostile.application import Answer, Target, call
from tests.hostile.case import good
from tests.hostile.wires import Wire, json_of, written
from tests.rollouts.live.test_consumers import Page

pytestmark = pytest.mark.django_db(transaction=True)

ITEM = written(Wire.ATROPOS, good()) or b""
FORM = "application/x-www-form-urlencoded"
Door = Callable[[Target, str], Answer]


def token(target: Target, credential: str) -> Answer:
    return target.ask("GET", "/api/v1/runs", authorization=f"Token {credential}")


def hot_token(target: Target, credential: str) -> Answer:
    path = f"/api/v1/runs/{target.run.key}/groups"
    return target.ask("POST", path, json_of(good()), authorization=f"Token {credential}")


def atropos(target: Target, credential: str) -> Answer:
    return target.ask("POST", f"/atropos/{credential}/scored_data", ITEM, content_type="application/json")


def login_link(target: Target, credential: str) -> Answer:
    return target.ask("GET", f"/login/link/{credential}")


def credential(number: int) -> str:
    return f"{number:032x}"


@pytest.mark.parametrize(
    ("door", "otherwise"),
    [(token, 401), (hot_token, 401), (atropos, 404), (login_link, 410)],
    ids=["token", "hot token", "atropos", "login link"],
)
def test_who_guesses_waits_without_a_query(door: Door, otherwise: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guesses, "FREE_FAILURES", 5)
    target = Target()
    answers = [door(target, credential(number)) for number in range(5)]
    assert [each.status for each in answers] == [otherwise] * 5
    refused = door(target, credential(5))
    assert refused.status == 429
    assert 55 <= int(refused.headers["retry-after"]) <= 60
    assert b"Try again in" in refused.body
    assert ScoredGroup.objects.count() == 0


def test_a_credential_that_lately_opened_something_passes_beside_a_guesser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guesses, "FREE_FAILURES", 3)
    target = Target()
    opened: list[tuple[Door, str]] = [(token, target.token), (atropos, target.external.address.key)]
    assert [door(target, known).status for door, known in opened] == [200, 200]
    for number in range(4):
        atropos(target, credential(number))
    assert token(target, credential(9)).status == 429
    assert [door(target, known).status for door, known in opened] == [200, 200]
    lookup._found_at.clear()
    assert atropos(target, target.external.address.key).status == 200


def test_good_requests_cost_no_query_more(monkeypatch: pytest.MonkeyPatch) -> None:
    key = Target().external.address.key
    lookup.find(key)
    with CaptureQueriesContext(connection) as queries:
        guesses.check("127.0.0.1", key)
        guesses.opened(key)
    assert len(queries) == 0


def test_each_wait_is_twice_as_long_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(guesses.time, "monotonic", lambda: now)
    waits = []
    for _ in range(7):
        for _ in range(guesses.FREE_FAILURES):
            guesses.check("10.0.0.1")
            guesses.failed("10.0.0.1")
        with pytest.raises(TooManyFailures) as refused:
            guesses.check("10.0.0.1")
        waits.append(refused.value.retry_after_s)
        now += waits[-1]
    assert waits == [60, 120, 240, 480, 960, 960, 960]
    now += guesses.LONGEST_WAIT_S + 1
    guesses.failed("10.0.0.1")
    guesses.check("10.0.0.1")
    guesses.check("10.0.0.2")


def test_a_customer_with_many_addresses_of_one_network_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guesses, "FREE_FAILURES", 3)
    for number in range(3):
        guesses.failed(f"2001:db8::{number:x}")
    with pytest.raises(TooManyFailures):
        guesses.check("2001:db8::ffff")
    guesses.check("2001:db8:1::1")


def test_no_more_is_remembered_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guesses, "MAX_REMEMBERED", 10)
    for number in range(100):
        guesses.failed(f"10.0.0.{number}")
        guesses.opened(credential(number))
    assert len(guesses._failures) == len(guesses._known) == 10


def test_a_header_about_the_sender_is_believed_by_the_server_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guesses, "FREE_FAILURES", 3)
    target = Target()
    path = f"/atropos/{credential(1)}/info"
    for number in range(3):
        target.ask("GET", path, x_forwarded_for=f"10.0.0.{number}", forwarded=f"for=10.0.0.{number}")
    assert target.ask("GET", path, x_forwarded_for="10.0.0.9").status == 429


@pytest.mark.parametrize(
    ("https", "allowed", "is_believed"), [(False, "", False), (False, "127.0.0.1", True), (True, "", True)]
)
def test_a_header_about_the_sender_is_believed_where_there_is_a_proxy(
    monkeypatch: pytest.MonkeyPatch, settings: Any, https: bool, allowed: str, is_believed: bool
) -> None:
    settings.HTTPS = https
    if allowed:
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", allowed)
    monkeypatch.setattr(application, "application", configured().loaded_app)
    monkeypatch.setattr(guesses, "FREE_FAILURES", 1)
    target = Target()
    target.ask("GET", f"/atropos/{credential(1)}/info", x_forwarded_for="10.0.0.1")
    answer = target.ask("GET", f"/atropos/{credential(2)}/info", x_forwarded_for="10.0.0.2")
    assert answer.status == (404 if is_believed else 429)


def test_whatever_a_proxy_says_that_is_no_address_is_one_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "127.0.0.1")
    monkeypatch.setattr(application, "application", configured().loaded_app)
    monkeypatch.setattr(guesses, "FREE_FAILURES", 3)
    monkeypatch.setattr(guesses, "only_runs_are_nameless", True)
    target, token = Target(), "a" * 32
    form = {"content_type": FORM, "x_csrftoken": token, "cookie": f"rollyard_csrf={token}"}
    for claimed in ("nowhere", "x" * 100_000, "fe80::1%eth0", "10.0.0.1:80:80"):
        page = target.ask("POST", "/login/", b"username=a&password=b", x_forwarded_for=claimed, **form)
        assert page.status == 200, "or the store was asked about it"
        target.ask("GET", f"/atropos/{credential(1)}/info", x_forwarded_for=claimed)
    assert target.ask("GET", f"/atropos/{credential(1)}/info", x_forwarded_for="elsewhere").status == 429
    assert max(map(len, guesses._failures)) < 20
    assert max(len(network) for _, network in pacing._senders) < 20


def test_an_address_of_ipv4_is_one_however_a_socket_for_both_kinds_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "127.0.0.1")
    monkeypatch.setattr(application, "application", configured().loaded_app)
    monkeypatch.setattr(guesses, "FREE_FAILURES", 1)
    target, path = Target(), f"/atropos/{credential(1)}/info"
    target.ask("GET", path, x_forwarded_for="::ffff:10.0.0.1")
    assert target.ask("GET", path, x_forwarded_for="::ffff:10.0.0.2").status == 404
    assert target.ask("GET", path, x_forwarded_for="10.0.0.1").status == 429


def connected(page: Page) -> dict[str, Any]:
    """How a socket is answered; of one that is closed as soon as it is open, with what."""

    async def run() -> dict[str, Any]:
        answer = await page.connect()
        if answer["type"] == "websocket.accept" and not await page.receive_nothing(0.05):
            answer = await page.receive_output(15)
        await page.leave()
        return answer

    return asyncio.run(run())


def test_sockets_of_nobody_are_refused_before_anything_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guesses, "FREE_FAILURES", 3)
    user = make_user("vera")
    browser = Client()
    browser.force_login(user)
    known = Page(None, client=browser)
    assert connected(known)["type"] == "websocket.accept"
    for _ in range(3):
        assert connected(Page(None))["code"] == consumers.FORBIDDEN
    assert connected(Page(None))["code"] == 1008
    assert connected(Page(None, client=browser))["type"] == "websocket.accept", "a session that was let in lately"


def test_a_socket_with_a_cookie_that_is_no_session_is_refused_like_one_without() -> None:
    browser = Client()
    browser.cookies["rollyard_session"] = '"aaaaaaaaaaaa\\000"'
    assert connected(Page(None, client=browser)) == connected(Page(None))


@pytest.mark.parametrize(
    ("origin", "host", "is_own"),
    [
        ("http://testserver", "testserver", True),
        ("http://testserver:80", "testserver", True),
        ("http://testserver:8000", "testserver:8000", True),
        ("http://TestServer:8000", "testserver:8000", True),
        ("http://testserver:8001", "testserver:8000", False),
        ("http://testserver", "testserver:8000", False),
        ("https://testserver", "testserver", False),
        ("http://evil.example", "testserver", False),
        ("http://evil.example", "evil.example", False),
        ("http://testserver.evil.example", "testserver", False),
        ("http://testserver@evil.example", "testserver", False),
        ("null", "testserver", False),
        ("", "testserver", False),
        ("http://testserver:99999", "testserver", False),
        ("http://[", "testserver", False),
    ],
)
def test_only_a_page_of_this_very_origin_opens_a_socket(origin: str, host: str, is_own: bool) -> None:
    answer = connected(Page(make_user("vera"), origin, host))
    assert answer["type"] == ("websocket.accept" if is_own else "websocket.close")


def test_a_trusted_origin_opens_a_socket_and_over_https_plain_pages_do_not(settings: Any) -> None:
    user = make_user("vera")
    settings.CSRF_TRUSTED_ORIGINS = ["https://yard.example"]
    assert connected(Page(user, "https://yard.example"))["type"] == "websocket.accept"
    settings.SESSION_COOKIE_SECURE = True
    assert connected(Page(user, "http://testserver"))["type"] == "websocket.close"
    assert connected(Page(user, "https://testserver"))["type"] == "websocket.accept"


@pytest.mark.slow
def test_one_user_has_a_number_of_sockets_and_the_next_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "MAX_SOCKETS", 3)
    vera = make_user("vera")
    *pages, crowded, again = [Page(vera) for _ in range(5)]
    other = Page(make_user("otto"))

    async def stays(page: Page) -> bool:
        return (await page.connect())["type"] == "websocket.accept" and await page.is_quiet()

    async def run() -> None:
        assert [await stays(page) for page in (*pages, other)] == [True] * 4
        assert (await crowded.connect())["type"] == "websocket.accept", "or the page would not hear why"
        closed = await crowded.receive_output(15)
        assert (closed["code"], closed["reason"]) == (consumers.TOO_MANY, consumers.CROWDED)
        await crowded.leave()
        await pages[0].leave()
        assert await stays(again)
        for page in (*pages[1:], other, again):
            await page.leave()

    asyncio.run(run())
    assert not consumers._open_sockets


def test_a_call_from_no_address_is_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guesses, "FREE_FAILURES", 1)
    assert asyncio.run(call("GET", f"/atropos/{credential(1)}/info")) is not None
    guesses.failed("")
    with pytest.raises(TooManyFailures):
        guesses.check("")


def test_a_run_that_guesses_shuts_no_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guesses, "FREE_FAILURES", 1)
    monkeypatch.setattr(guesses, "only_runs_are_nameless", True)
    guesses.failed("")
    guesses.check("", credential(1))
    guesses.failed("10.0.0.1")
    with pytest.raises(TooManyFailures):
        guesses.check("10.0.0.1", credential(1))
