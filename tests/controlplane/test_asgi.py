"""A request on its way through our handler: what it took from the process comes back, whatever the answer's fate."""

import asyncio
from typing import Any

import pytest
from django.db import connection

from controlplane.asgi import application

pytestmark = pytest.mark.django_db(transaction=True)


class Gone(Exception):
    """The client is."""


@pytest.mark.parametrize("path", ["/readyz", "/api/v1/runs", "/admin/", "/"])
def test_an_answer_that_nobody_takes_keeps_no_connection_to_the_database(path: str) -> None:
    async def receive() -> Any:
        return await waiting.get()

    async def send(_message: Any) -> None:
        raise Gone

    async def ask() -> None:
        waiting.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        headers = [(b"host", b"testserver"), (b"cookie", b"rollyard_session=" + b"x" * 32)]
        with pytest.raises(Gone):
            await application(
                {"type": "http", "method": "GET", "path": path, "headers": headers, "query_string": b""}, receive, send
            )

    before = in_use()
    for _ in range(3):
        waiting: asyncio.Queue[Any] = asyncio.Queue()
        asyncio.run(ask())
    assert in_use() == before


def in_use() -> int:
    statistics = connection.pool.get_stats()
    return int(statistics["pool_size"] - statistics["pool_available"])
