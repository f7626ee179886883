"""Whether a batch arrived: seen from the connection, in the application alone and behind a real server."""

import asyncio
import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn
from django.db import InterfaceError, OperationalError
from django.db.models.functions import Now

from rollouts.doors import sending
from rollouts.doors.atropos.app import application
from rollouts.models import Delivery, Run
from rollouts.services.outside import deliveries
from tests.rollouts.doors.atropos.api import Api, tags

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


class Connection:
    """The other side of the application: it may go away, or be slow, at any message."""

    def __init__(self, run: Run, *, leave_after: int | None = None, at_message: Callable[[int], None] | None = None):
        self.scope = {
            "type": "http",
            "method": "GET",
            "path": f"/atropos/{run.address.key}/batch",
            "query_string": b"",
            "headers": [(b"accept-encoding", b"identity")],
        }
        self.leave_after = leave_after
        self.at_message = at_message
        self.sent: list[dict[str, Any]] = []
        self.gone = asyncio.Event()
        self.has_asked = False

    async def receive(self) -> dict[str, Any]:
        if not self.has_asked:
            self.has_asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        if self.gone.is_set():
            return  # as servers do
        self.sent.append(message)
        if self.at_message is not None:
            await asyncio.to_thread(self.at_message, len(self.sent))
        is_whole = message["type"] == "http.response.body" and not message.get("more_body", False)
        if is_whole or len(self.sent) == self.leave_after:
            self.gone.set()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


def fetch(run: Run, **behaviour: Any) -> Connection:
    async def ask() -> Connection:
        connection = Connection(run, **behaviour)
        await application(connection.scope, connection.receive, connection.send)  # type: ignore[arg-type]
        return connection

    return asyncio.run(ask())


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    """One batch is ready, of a few hundred bytes, which are sent in pieces of a hundred."""
    monkeypatch.setattr(sending, "CHUNK_BYTES", 100)
    api = Api()
    api.start(batch_size=2)
    api.submit(tag=1)
    return api


def test_a_batch_is_sent_in_pieces_and_has_arrived_with_the_last(api: Api) -> None:
    connection = fetch(api.run)
    assert tags(json.loads(connection.body)["batch"]) == [1]
    start, *pieces = connection.sent
    assert dict(start["headers"])[b"content-length"] == str(len(connection.body)).encode()
    assert len([piece for piece in pieces if piece["body"]]) == -(-len(connection.body) // 100)
    assert Delivery.objects.get().sent_at is not None


@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_a_batch_that_arrived_while_the_database_restarts_is_not_sent_again(
    api: Api, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    finish, failing = deliveries.finish, [error("gone"), error("starting up")]

    def away_at_first(outgoing: Any) -> bool:
        if failing:
            raise failing.pop()
        return finish(outgoing)

    monkeypatch.setattr(deliveries, "finish", away_at_first)
    monkeypatch.setattr(deliveries, "TERM_S", 0)  # away for longer than a lease lasts
    monkeypatch.setattr(sending, "AGAIN_S", 0.01)
    fetch(api.run)
    assert Delivery.objects.get().sent_at is not None
    assert api.get("/batch") == {"batch": None}


def test_a_batch_that_arrived_while_the_database_stays_away_is_given_again(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(outgoing: Any) -> bool:
        raise OperationalError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(deliveries, "finish", away)
        patched.setattr(sending, "AWAY_S", 0)
        with pytest.raises(OperationalError):
            fetch(api.run)
    assert tags(api.get("/batch")["batch"]) == [1]


@pytest.mark.parametrize("leave_after", [1, 2, 3, 4, 5])
def test_a_batch_whose_client_went_away_is_given_again(api: Api, leave_after: int) -> None:
    broken = fetch(api.run, leave_after=leave_after)
    assert Delivery.objects.get().sent_at is None
    whole = fetch(api.run)
    assert whole.body.startswith(broken.body)
    assert len(broken.body) < len(whole.body)
    assert Delivery.objects.get().sent_at is not None


def test_a_reset_while_a_batch_is_sent_cuts_it_off(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "RENEW_S", 0.01)
    has_reset = threading.Event()

    def at_message(count: int) -> None:
        if count == 3:
            api.request("GET", "/reset_data")
            has_reset.set()
        elif count > 3:
            time.sleep(0.1)  # a slow connection: the lease is looked at meanwhile

    connection = fetch(api.run, at_message=at_message)
    assert has_reset.is_set()
    assert connection.sent[-1].get("more_body"), "it is not complete, so the server closes the connection"
    delivery = Delivery.objects.get()
    assert delivery.sent_at is None
    assert delivery.abandoned_at is not None


def test_a_lease_is_renewed_while_a_batch_is_sent(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "RENEW_S", 0.01)
    ends = []

    def at_message(count: int) -> None:
        before = Delivery.objects.get().expires_at
        deadline = time.monotonic() + 10
        while Delivery.objects.get().expires_at == before and time.monotonic() < deadline:
            time.sleep(0.01)
        ends.append(Delivery.objects.get().expires_at > before)

    fetch(api.run, at_message=lambda count: at_message(count) if count == 3 else None)
    assert ends == [True]
    assert Delivery.objects.get().sent_at is not None


def test_a_client_that_stops_reading_does_not_keep_a_batch_for_ever(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as hurried:
        hurried.setattr(sending, "DEADLINE_S", 0.1)
        # The client itself: in the middle of the answer it reads nothing for ten times as long as it may.
        connection = fetch(api.run, at_message=lambda count: time.sleep(1.0) if count == 2 else None)
    assert connection.sent[-1].get("more_body")
    assert tags(json.loads(fetch(api.run).body)["batch"]) == [1]


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    """A uvicorn as in the product, on a free port."""
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_config=None, lifespan="off"))  # type: ignore[arg-type]
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    host, port = server.servers[0].sockets[0].getsockname()
    yield host, port
    server.should_exit = True
    thread.join(20)


def request(address: tuple[str, int], run: Run, path: str, headers: str = "") -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(20)
    connection.connect(address)
    head = f"GET /atropos/{run.address.key}{path} HTTP/1.1\r\nHost: x\r\n{headers}Connection: close\r\n\r\n"
    connection.sendall(head.encode())
    return connection


def read_all(connection: socket.socket) -> bytes:
    with connection:
        pieces = list(iter(lambda: connection.recv(2**20), b""))
    return b"".join(pieces)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_behind_a_real_server_half_a_batch_has_not_arrived(address: tuple[str, int]) -> None:
    api = Api()
    api.start(batch_size=2)
    length = 400_000  # more than the kernel's buffers take
    api.submit(tag=1, length=length, inference_logprobs=[[-1 / 3] * length] * 2)
    with request(address, api.run, "/batch") as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        assert api.get("/batch") == {"batch": None}, "it is on its way"
    until(lambda: Delivery.objects.filter(expires_at__lt=Now()).exists())
    assert Delivery.objects.get().sent_at is None
    head, _, body = read_all(request(address, api.run, "/batch", "Accept-Encoding: gzip\r\n")).partition(b"\r\n\r\n")
    assert b"content-encoding: gzip" in head
    assert tags(json.loads(gzip.decompress(body))["batch"]) == [1]
    until(lambda: Delivery.objects.get().sent_at is not None)
    assert api.get("/batch") == {"batch": None}
    assert Run.objects.get().next_step == 1


@pytest.mark.slow
def test_behind_a_real_server_small_answers_are_plain(address: tuple[str, int]) -> None:
    api = Api()
    head, _, body = read_all(request(address, api.run, "/info", "Accept-Encoding: gzip\r\n")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert body == b'{"batch_size":-1,"max_token_len":-1}'
