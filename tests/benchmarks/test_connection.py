"""The load generator's client reads every kind of answer, over a real socket."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.wire_load.connection import Address, Connection
from benchmarks.wire_load.fleet import Plan


@contextmanager
def answering(*answers: bytes) -> Iterator[Connection]:
    """A server that sends these bytes, one answer per request, each on whatever connection the request came on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            left = list(answers)
            while left:
                accepted, _ = listening.accept()
                with accepted:
                    while left and accepted.recv(65536):
                        accepted.sendall(answer := left.pop(0))
                        if b"close" in answer or not answer:
                            break

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        connection = Connection(Address("127.0.0.1", listening.getsockname()[1]), timeout_s=10)
        yield connection
        connection.close()
        thread.join(10)


def test_answers_follow_each_other_on_one_connection() -> None:
    with answering(
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: a:b\r\n\r\n{}",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n",
    ) as connection:
        answers = [connection.exchange(b"GET / HTTP/1.1\r\n\r\n") for _ in range(3)]
    assert [(answer.status, bytes(answer.body)) for answer in answers] == [(200, b"{}"), (204, b""), (201, b"abcde")]
    assert answers[0].headers == {b"content-length": b"2", b"x": b"a:b"}


def test_a_connection_that_the_server_closes_is_opened_again() -> None:
    closing = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\n1"
    with answering(closing, closing.replace(b"\r\n\r\n1", b"\r\n\r\n2")) as connection:
        assert [connection.exchange(b"GET").json() for _ in range(2)] == [1, 2]


def test_an_answer_that_breaks_off_is_an_error() -> None:
    with (
        answering(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\n1") as connection,
        pytest.raises(ConnectionError, match="1 of 9 bytes"),
    ):
        connection.exchange(b"GET")


def test_no_answer_is_an_error() -> None:
    with answering(b"") as connection, pytest.raises(ConnectionError, match="instead of answering"):
        connection.exchange(b"GET")


def test_a_call_that_is_refused_ends_the_benchmark_with_the_answer() -> None:
    refusal = b"HTTP/1.1 409 Conflict\r\nContent-Length: 5\r\n\r\nno: x"
    with answering(refusal) as connection, pytest.raises(SystemExit, match="POST /register answered 409: b'no: x'"):
        connection.call("POST", "/register", {})


def test_clients_share_the_requests_exactly() -> None:
    assert [Plan(3, requests=7).share(client) for client in range(3)] == [2, 2, 3]
