"""Named queries. One file each; its header says what it does, which rows it locks and which index it relies on."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import resources
from typing import Any, LiteralString

import psycopg
from django.db import connection

_UNFINISHED = (psycopg.pq.TransactionStatus.INTRANS, psycopg.pq.TransactionStatus.INERROR)


@cache
def load(name: str) -> LiteralString:
    """The text of ``<name>.sql``. Values are always bound as named parameters, never formatted in."""
    return resources.files(__package__).joinpath(f"{name}.sql").read_text()


@contextmanager
def binary_cursor() -> "Iterator[psycopg.Cursor[Any]]":
    """A cursor that sends and gets values in binary, in the current transaction: no token is ever written as text.

    Its statements are planned on the server with typed parameters; Django's own cursors paste values into the text.
    Raises Django's database errors, like those.
    """
    connection.ensure_connection()
    with connection.wrap_database_errors, psycopg.Cursor(connection.connection) as cursor:
        cursor.format = psycopg.pq.Format.BINARY
        yield cursor


def streamed(statement: LiteralString, values: dict[str, Any], size: int) -> Iterator[list[tuple[Any, ...]]]:
    """Pages of the rows of a statement, of which the server hands out no more than is taken: memory does not grow with
    them. The connection may be asked other things between them."""
    with connection.chunked_cursor() as cursor:
        cursor.execute(statement, values)
        while rows := cursor.fetchmany(size):
            yield rows


@contextmanager
def pipelined_transaction() -> Iterator[None]:
    """A transaction of binary cursors' statements, which wait for no answer before somebody fetches it.

    Django does not know of it: nothing of the ORM belongs in the block, and it belongs in no other transaction. What a
    statement raises may come later, at the latest when the block ends; nothing is committed then.
    """
    assert not connection.in_atomic_block
    connection.ensure_connection()
    raw = connection.connection
    with connection.wrap_database_errors:
        try:
            with raw.pipeline():
                raw.execute("BEGIN")
                yield
                raw.execute("COMMIT")
        finally:
            if raw.info.transaction_status in _UNFINISHED:
                raw.rollback()


def in_pipeline() -> bool:
    """Whether statements go out without waiting for each other."""
    return bool(connection.connection.pgconn.pipeline_status)
