"""Clients that hold the line, do not listen or leave in the middle: others are served as if they were not there."""

import threading
from collections.abc import Callable

import pytest

from tests.hostile.application import Target
from tests.hostile.server import GROUP, Web, atropos, native, sized

pytestmark = [pytest.mark.django_db, pytest.mark.slow]
SILENT = 600
"""Connections at once: more than the Atropos API lets in."""

HALVES: dict[str, Callable[[Target], str]] = {
    "a request line": lambda target: "GET /api/v1/ru",
    "a header": lambda target: "GET /api/v1/runs HTTP/1.1\r\nHost: local",
    "a body for the native API": lambda target: native(target) + "\r\nContent-Length: 9\r\n\r\n{",
    "a body of a stranger": lambda target: native(target, token="x") + "\r\nContent-Length: 9\r\n\r\n{",
    "a body for the Atropos API": lambda target: atropos(target) + "\r\nContent-Length: 9\r\n\r\n{",
    "a body of a stranger for the Atropos API": lambda target: (
        atropos(target, "x" * 32) + "\r\nContent-Length: 9\r\n\r\n{"
    ),
    "a chunk": lambda target: atropos(target) + "\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
    "a form": lambda target: "POST /login/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\na",
}


@pytest.mark.parametrize("name", HALVES)
def test_those_who_send_half_and_fall_silent_block_nobody(web: Web, target: Target, name: str) -> None:
    silent = [web.connect() for _ in range(SILENT)]
    try:
        for connection in silent:
            connection.sendall(HALVES[name](target).encode())
        web.check_serves(target)
    finally:
        for connection in silent:
            connection.close()


def test_those_who_do_not_read_their_answers_block_nobody(web: Web, target: Target) -> None:
    ask = f"GET /api/v1/schema HTTP/1.1\r\nHost: localhost\r\nAuthorization: Token {target.token}\r\n\r\n".encode()
    deaf = [web.connect() for _ in range(50)]
    try:
        for connection in deaf:
            connection.sendall(ask * 10)
        web.check_serves(target)
    finally:
        for connection in deaf:
            connection.close()


@pytest.mark.parametrize("path", ["/readyz", "/api/v1/runs", "/api/v1/schema"])
def test_those_who_ask_several_things_and_leave_take_no_connection_to_the_database_with_them(
    web: Web, target: Target, path: str
) -> None:
    """Once every answer that could not be sent kept one, until none was left."""
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Token {target.token}\r\n"
    asked = (head + f"Cookie: rollyard_session={'x' * 32}\r\n\r\n").encode() * 3
    for _ in range(40):
        with web.connect() as connection:
            connection.sendall(asked)
            connection.recv(1)
    web.check_serves(target)


@pytest.mark.usefixtures("nothing_stored")
def test_those_who_leave_before_the_end_leave_nothing(web: Web, target: Target) -> None:
    whole = f"{native(target)}\r\nHost: localhost\r\n".encode() + sized(GROUP)

    def come_and_go() -> None:
        for number in range(50):
            with web.connect() as connection:
                connection.sendall(whole[: number * len(whole) // 50])

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
