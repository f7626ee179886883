"""Named queries. One file each; its header says what it does, which rows it locks and which index it relies on."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import resources
from typing import Any, LiteralString

import psycopg
from django.db import connection


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
