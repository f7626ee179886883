"""What refusing costs is paced: whoever causes much of it waits, and nobody else does."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.home import FOR_RUNS
from controlplane.web import pacing
from controlplane.web.pacing import BURST_S, paced
from rollouts import guesses
from rollouts.consumers import FORBIDDEN
from rollouts.doors.messages import Message, Receive, Scope, Send

COST_S = 0.1
KEY = "k" * 40
yielded = asyncio.sleep


class Clock:
    """Time that passes while somebody sleeps, and not otherwise."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await yielded(0)
        self.now += seconds
        self.slept += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[Clock]:
    settings.REFUSALS_SHARE = 0.1
    clock = Clock()
    monkeypatch.setattr(pacing.time, "monotonic", clock.monotonic)
    monkeypatch.setattr(pacing.asyncio, "sleep", clock.sleep)
    monkeypatch.setattr(pacing, "REQUEST_S", COST_S)
    monkeypatch.setattr(pacing, "SOCKET_S", COST_S)
    yield clock
    pacing.forget()


def sent(status: int, path: str = "/api/v1/runs", **how: str) -> int:
    """The status that a request gets which the application would answer so; 0: it would answer nothing."""
    return asyncio.run(exchange(status, path, **how))


async def exchange(status: int, path: str, **how: str) -> int:
    answered = await messages(status, path, **how)
    return answered[0]["status"] if answered else 0


async def messages(
    status: int, path: str, *, address: str = "10.0.0.1", method: str = "GET", sandbox: str = "", token: str = ""
) -> list[Message]:
    answered: list[Message] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if status:
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        answered.append(message)

    scope: Scope = {"type": "http", "method": method, "path": path, "headers": [], "client": (address, 1)}
    if sandbox:
        scope |= {"client": None, "state": {FOR_RUNS: sandbox}}
    if token:
        scope["headers"] = [(b"authorization", f"Token {token}".encode())]
    await paced(application)(scope, receive, send)
    return answered


def waits(clock: Clock, status: int, path: str = "/api/v1/runs", **how: str) -> list[bool]:
    """Whether each of five requests had to wait."""
    found = []
    for _ in range(5):
        before = clock.slept
        sent(status, path, **how)
        found.append(clock.slept > before)
    return found


FREE, PACED = [False] * 5, [False, False, True, True, True]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 422, 429, 0])
def test_who_is_refused_waits_after_some_refusals(clock: Clock, status: int) -> None:
    assert waits(clock, status) == PACED
    assert clock.slept == pytest.approx((5 * COST_S - BURST_S - COST_S) / 0.1)


@pytest.mark.parametrize("status", [200, 201, 202, 500, 503])
def test_what_succeeds_or_is_our_fault_costs_its_sender_nothing(clock: Clock, status: int) -> None:
    assert waits(clock, status) == FREE


def test_a_page_for_nobody_in_particular_costs_its_sender_something(clock: Clock) -> None:
    assert waits(clock, 200, "/login/") == PACED


def test_another_address_does_not_wait(clock: Clock) -> None:
    waits(clock, 404)
    before = clock.slept
    sent(404, address="10.0.0.2")
    assert clock.slept == before


@pytest.mark.parametrize(
    ("told", "found"),
    [
        (["websocket.close"], PACED),
        (["websocket.accept", "websocket.close"], PACED),
        (["websocket.accept", "websocket.send", "websocket.close"], FREE),
        (["websocket.accept"], FREE),
    ],
)
def test_a_socket_that_is_opened_only_to_be_refused_costs_its_sender_what_one_that_is_not_does(
    clock: Clock, told: list[str], found: list[bool]
) -> None:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        for kind in told:
            await send({"type": kind} | ({"code": FORBIDDEN} if kind == "websocket.close" else {}))

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        pass

    async def try_one() -> bool:
        before = clock.slept
        scope: Scope = {"type": "websocket", "path": "/ws/", "headers": [], "client": ("10.0.0.1", 1)}
        await paced(application)(scope, receive, send)
        return clock.slept > before

    assert [asyncio.run(try_one()) for _ in range(5)] == found


def test_a_run_that_is_refused_much_keeps_no_other_waiting_whatever_tokens_it_makes_up(clock: Clock) -> None:
    async def story() -> None:
        bad = [asyncio.create_task(exchange(401, "/api/v1/runs", sandbox="a", token=f"{n}")) for n in range(60)]
        await yielded(0)
        assert await exchange(200, "/api/v1/runs", sandbox="b", token="never seen") == 200
        assert not clock.slept
        assert [await each for each in bad].count(429) > 0, "but the run itself waits"

    sent(401, sandbox="a")
    sent(401, sandbox="a")
    asyncio.run(story())
    assert len(pacing._senders) == 1


def test_a_credential_that_lately_opened_something_passes_beside_strangers_of_its_address(clock: Clock) -> None:
    path = f"/atropos/{KEY}/status"
    waits(clock, 404, "/atropos/x/status")
    guesses.opened(KEY)
    assert waits(clock, 200, path) == FREE
    assert waits(clock, 422, path) == PACED, "but it pays for its own refusals"
    guesses.forget()


@pytest.mark.parametrize("status", [409, 410, 429, 0])
def test_what_a_good_client_is_told_in_the_course_of_things_costs_nothing(clock: Clock, status: int) -> None:
    guesses.opened(KEY)
    assert waits(clock, status, f"/atropos/{KEY}/status") == FREE
    guesses.forget()


@pytest.mark.parametrize(
    ("path", "status", "found"),
    [
        ("/runs/new/check/", 200, FREE),
        ("/runs/new/make-model/", 200, FREE),
        ("/runs/new/", 302, FREE),
        ("/runs/new/", 422, PACED),
        ("/admin/rollouts/run/1/change/", 200, PACED),
        ("/admin/rollouts/run/1/change/", 302, FREE),
    ],
)
def test_somebody_who_is_signed_in_pays_for_forms_that_were_not_right_and_for_no_others(
    clock: Clock, path: str, status: int, found: list[bool]
) -> None:
    guesses.opened(KEY)
    assert waits(clock, status, path, method="POST", token=KEY) == found
    guesses.forget()


def test_who_types_into_a_form_never_waits_and_who_has_it_checked_without_a_pause_does(clock: Clock) -> None:
    guesses.opened(KEY)

    def checked(pause_s: float) -> float:
        began = clock.slept
        for _ in range(50):
            sent(200, "/runs/new/check/", method="POST", token=KEY)
            clock.now += pause_s
        return clock.slept - began

    assert checked(pause_s=2 * COST_S) == 0
    assert checked(pause_s=0) > 50 * COST_S
    guesses.forget()


def test_a_credential_is_one_sender_from_however_many_addresses(clock: Clock) -> None:
    guesses.opened(KEY)
    for number in range(3):
        sent(403, token=KEY, address=f"10.0.{number}.1")
    assert clock.slept > 0
    assert len(pacing._senders) == 1
    guesses.forget()


def test_those_who_wait_go_one_at_a_time_and_of_many_some_are_sent_away(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "MAX_HELD", 3)
    waits(clock, 404)

    async def crowd() -> list[int]:
        return await asyncio.gather(*(exchange(404, "/") for _ in range(10)))

    began = clock.slept
    assert sorted(asyncio.run(crowd())) == [404] * 3 + [429] * 7
    assert clock.slept - began == pytest.approx(3 * COST_S / 0.1)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/runs/", "text/plain; charset=utf-8"),
        ("/api/v1/runs", "application/problem+json"),
        ("/atropos/x/info", "application/json"),
    ],
)
def test_who_is_sent_away_is_told_when_to_come_back(monkeypatch: pytest.MonkeyPatch, path: str, kind: str) -> None:
    for _ in range(5):
        sent(404)
    monkeypatch.setattr(pacing, "MAX_HELD", 0)
    start, rest = asyncio.run(messages(200, path))
    headers = dict(start["headers"])
    assert (start["status"], headers[b"content-type"].decode()) == (429, kind)
    assert (headers[b"x-content-type-options"], headers[b"retry-after"]) == (b"nosniff", b"1")
    assert b"was refused lately. Try again in 1 s." in rest["body"]


def test_no_more_senders_are_remembered_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "MAX_REMEMBERED", 10)
    for number in range(50):
        sent(404, address=f"10.0.1.{number}")
    assert len(pacing._senders) == 10
