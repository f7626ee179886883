"""Where groups are sent in tests of the client: a real HTTP server that stores by key, and misbehaves when told to."""

import json
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from environments.types import PackedScoredGroup
from tests import http_server

RUN = "run-1"
_decode = msgspec.msgpack.Decoder(list[PackedScoredGroup]).decode


class GroupStore:
    """What arrived, and what is to go wrong next."""

    def __init__(self) -> None:
        self.groups: dict[str | None, PackedScoredGroup] = {}
        """By key, in the order in which they came first."""
        self.requests: list[tuple[float, int]] = []
        """Monotonic time and number of groups of every request."""
        self.mishaps: list[Callable[[Handler], None]] = []
        """Each is taken by one request, in order, instead of the real answer."""
        self.unfit: set[str | None] = set()
        """Keys of groups that are refused for what they hold."""

    @property
    def keys(self) -> list[str | None]:
        return list(self.groups)

    def store(self, body: bytes) -> list[str | None]:
        groups = _decode(body)
        for group in groups:
            self.groups.setdefault(group.key, group)
        return [group.key for group in groups]


class Handler(http_server.Handler):
    timeout = 10
    group_store: GroupStore
    body: bytes

    def tell(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        self.answer(status, json.dumps(content).encode(), headers)

    def do_POST(self) -> None:
        self.body = self.rfile.read(int(self.headers["Content-Length"]))
        store = self.group_store
        groups = _decode(self.body)
        store.requests.append((time.monotonic(), len(groups)))
        if store.mishaps:
            store.mishaps.pop(0)(self)
        elif store.unfit & {group.key for group in groups}:
            self.tell(422, {"code": "invalid", "detail": "It does not hold together."})
        else:
            self.tell(201, {"stored": store.store(self.body)})


def status(number: int, /, *, headers: dict[str, str] | None = None, **problem: Any) -> Callable[[Handler], None]:
    """Refuse with a problem."""
    return lambda handler: handler.tell(number, problem, headers)


def slow_down(seconds: float) -> Callable[[Handler], None]:
    """Store, and ask for a pause."""
    return lambda handler: handler.tell(
        202, {"stored": handler.group_store.store(handler.body)}, {"Retry-After": str(seconds)}
    )


def hang_up(handler: Handler) -> None:
    """End the connection without an answer."""
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def store_and_hang_up(handler: Handler) -> None:
    """Commit, then lose the answer."""
    handler.group_store.store(handler.body)
    hang_up(handler)


def serving(store: GroupStore, port: int = 0) -> AbstractContextManager[str]:
    """Serve on a local port; yields the base url."""
    return http_server.serving(type("OwnHandler", (Handler,), {"group_store": store}), port)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])
