"""What a client may draw out on a connection: nothing for long, and not a head for ever."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
import uvicorn
from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, Scope
from websockets.sync.client import connect

from controlplane.web import connections
from controlplane.web.connections import MAX_EXCESS_BYTES, MAX_HEAD_BYTES, Connection

DEADLINE_S = 20.0


class Server:
    """An application that answers when it has the body, or hears that nobody waits for the answer; and an echo."""

    def __init__(self) -> None:
        self.disconnected = threading.Semaphore(0)
        self.address = ("", 0)

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept", "subprotocol": None, "headers": []})
            while (message := await receive())["type"] == "websocket.receive":
                await send({"type": "websocket.send", "bytes": None, "text": message["text"]})
            return
        assert scope["type"] == "http"
        while scope["path"] != "/early" and (message := await receive())["type"] == "http.request":
            if not message["more_body"]:
                break
        if scope["path"] == "/never" and message["type"] == "http.request":
            message = await receive()
        if scope["path"] != "/early" and message["type"] == "http.disconnect":
            self.disconnected.release()
            return
        await send({"type": "http.response.start", "status": 204, "headers": [], "trailers": False})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def exchange(self, *pieces: bytes) -> bytes:
        """What comes back until the server hangs up."""
        with socket.create_connection(self.address, DEADLINE_S) as connection, suppress(ConnectionError):
            for piece in pieces:
                connection.sendall(piece)
            return b"".join(iter(lambda: connection.recv(65536), b""))
        return b""  # it did so while we still sent, and its last words are lost


@pytest.fixture
def server() -> Iterator[Server]:
    served = Server()
    config = uvicorn.Config(served, http=Connection, ws="websockets-sansio", port=0, log_config=None, lifespan="off")
    running = uvicorn.Server(config)
    thread = threading.Thread(target=asyncio.run, args=[running.serve()], daemon=True)
    thread.start()
    give_up_at = time.monotonic() + DEADLINE_S
    while not running.started and time.monotonic() < give_up_at:
        time.sleep(0.01)
    served.address = running.servers[0].sockets[0].getsockname()
    yield served
    running.should_exit = running.force_exit = True
    thread.join(DEADLINE_S)


BEFORE = b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nX: ", BEFORE + b"GET /"])
def test_a_head_may_not_grow_for_ever(server: Server, start: bytes) -> None:
    answer = server.exchange(start, *[b"a" * 65536] * (4 * MAX_HEAD_BYTES // 65536))
    assert answer == b"" or answer.endswith(b"The head of the request is too large.")


def test_a_large_body_is_no_large_head(server: Server) -> None:
    size = 4 * MAX_HEAD_BYTES
    head = b"POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % size
    assert server.exchange(head, bytes(size)).startswith(b"HTTP/1.1 204 ")


@pytest.mark.parametrize("name", ["HEAD_DEADLINE_S", "BODY_DEADLINE_S"])
def test_who_does_not_go_on_is_hung_up_on_and_websockets_are_not(
    server: Server, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(connections, name, 0.05)
    halves = {
        "HEAD_DEADLINE_S": [b"", b"GET / HT"],
        "BODY_DEADLINE_S": [b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\na"],
    }
    host, port = server.address
    with connect(f"ws://{host}:{port}") as websocket:
        for half in halves[name]:
            assert server.exchange(half) == b""
        websocket.send("still there")
        assert websocket.recv(DEADLINE_S) == "still there"


def test_every_request_of_a_client_that_left_is_told(server: Server) -> None:
    with socket.create_connection(server.address, DEADLINE_S) as connection:
        connection.sendall(b"GET /never HTTP/1.1\r\n\r\n" * 3)
    assert server.disconnected.acquire(timeout=DEADLINE_S)


def test_of_a_body_that_was_answered_early_no_more_is_read_than_was_on_its_way(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "LINGER_S", 0.2)
    received = 0
    real = connections.HttpToolsProtocol.data_received

    def count(self: Connection, data: bytes) -> None:
        nonlocal received
        received += len(data)
        real(self, data)

    monkeypatch.setattr(connections.HttpToolsProtocol, "data_received", count)
    head = b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n"
    with socket.create_connection(server.address, DEADLINE_S) as connection:
        connection.sendall(head)
        assert connection.recv(65536).startswith(b"HTTP/1.1 204")
        with pytest.raises(ConnectionError):
            connection.sendall(bytes(60_000_000))
    assert received < 2 * MAX_EXCESS_BYTES


def test_a_small_body_that_was_answered_early_keeps_its_connection(server: Server) -> None:
    head = b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
    with socket.create_connection(server.address, DEADLINE_S) as connection:
        for _ in range(3):
            connection.sendall(head)
            assert connection.recv(65536).startswith(b"HTTP/1.1 204")
            connection.sendall(bytes(100_000))
