"""The whole ASGI application in the thread and the transaction of the test: what a request did can be undone.

A server answers in threads that have connections of their own. Here each request is a savepoint: what it wrote is
counted, then taken back, so every cell of the matrix begins with the same rows.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, ParamSpec, TypeVar
from unittest.mock import patch

from asgiref.sync import SyncToAsync
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, connection, connections, transaction

from controlplane import asgi
from rollouts import guesses
from rollouts.doors import kernel
from rollouts.doors.native import trainer
from tests.hostile.application import Answer, call

P = ParamSpec("P")
T = TypeVar("T")


class Outcome(NamedTuple):
    """What came of a request."""

    answer: Answer
    written: dict[str, int]
    """Rows that were inserted, updated or deleted, by table."""


class _Kept:
    """In place of the connection that a request gives back when it is answered."""

    def close(self) -> None:
        pass


async def _here(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return function(*args, **kwargs)


async def _called_here(wrapped: Any, *args: Any, **kwargs: Any) -> Any:
    return wrapped.func(*args, **kwargs)


async def _lend(ours: Any) -> None:
    """What runs on the loop has connections of its own, unless it is given one."""
    connections["default"] = ours


async def _take_back() -> None:
    del connections["default"]


@contextmanager
def in_this_thread() -> Iterator[None]:
    """In here every request is answered in the thread that asks, on its connection."""
    signals = (request_started, request_finished)
    for signal in signals:
        signal.disconnect(close_old_connections)
    try:
        with (
            patch.object(asgi, "connection", _Kept()),
            patch.object(kernel, "in_thread", _here),
            patch.object(SyncToAsync, "__call__", _called_here),
            patch.object(trainer, "async_to_sync", lambda _: lambda later, hop: later.otherwise),  # nobody waits
            patch.object(trainer, "MAX_WAIT_S", 0.0),
            patch.dict(os.environ, DJANGO_ALLOW_ASYNC_UNSAFE="1"),  # one thread for the loop and the queries
        ):
            _loop().run(_lend(connections["default"]))
            yield
    finally:
        _loop().run(_take_back())
        for signal in signals:
            signal.connect(close_old_connections)


def ask(
    method: str, target: str, headers: Mapping[str, str] = {}, body: bytes = b"", state: Mapping[str, Any] = {}
) -> Outcome:
    """Send a request, and take back what it wrote."""
    with undone():
        before = _rows_written()
        answer = send(method, target, headers, body, state)
        after = _rows_written()
    written = {table: rows - before.get(table, 0) for table, rows in after.items()}
    return Outcome(answer, {table: rows for table, rows in written.items() if rows})


@contextmanager
def undone() -> Iterator[None]:
    """What is written in here is taken back at its end."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def send(
    method: str, target: str, headers: Mapping[str, str] = {}, body: bytes = b"", state: Mapping[str, Any] = {}
) -> Answer:
    """Send a request of somebody who has failed at nothing yet."""
    guesses.forget()
    answer = _loop().run(call(method, target, headers, [body], state))
    assert answer is not None, "no answer"
    return answer


@cache
def _loop() -> asyncio.Runner:
    return asyncio.Runner()


def _rows_written() -> dict[str, int]:
    """By this transaction so far, by table; what was taken back counts. No test makes or drops a table."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_prepared_statements WHERE name = 'rows_written'")
        if cursor.fetchone() is None:
            cursor.execute("SELECT array_agg(relid)::text, array_agg(relname)::text FROM pg_stat_user_tables")
            cursor.execute(
                "PREPARE rows_written AS SELECT relname, written FROM unnest(%s::oid[], %s::text[])"
                " AS tables(oid, relname), LATERAL (SELECT pg_stat_get_xact_tuples_inserted(oid)"
                " + pg_stat_get_xact_tuples_updated(oid) + pg_stat_get_xact_tuples_deleted(oid)) AS counted(written)"
                " WHERE written > 0",
                cursor.fetchone(),
            )
        cursor.execute("EXECUTE rows_written")
        return dict(cursor.fetchall())
