"""The tables as all migrations together leave them, for a database that has none yet.

Django gets there one operation at a time, and draws every model anew after each: seconds that every newcomer and every
test would wait for. `schema.sql` is what `pg_dump` says of a database that went that way, held to it by
tests/controlplane/test_schema.py, which also writes it.
"""

from pathlib import Path

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

SNAPSHOT = Path(__file__).with_name("schema.sql")
WRITTEN_BY = 18
"""The release of PostgreSQL whose words these are. An older one may not know them all."""
_LOCK = int.from_bytes(b"Schema")
"""Any number nobody else locks."""


def load(connection: BaseDatabaseWrapper) -> bool:
    """Make the tables, and the record of the migrations that would have made them; says whether it did.

    Does nothing to a database that has any table, nor on a server older than the snapshot: migrations make those. All
    at once, under an advisory lock, so that the second of two who come to an empty database finds it made.
    """
    if connection.pg_version < WRITTEN_BY * 10_000:  # type: ignore[attr-defined]
        return False
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        if connection.introspection.table_names(cursor):
            return False
        # Every name in it has its schema, and functions are made before the tables that they read.
        cursor.execute("SET LOCAL search_path = ''; SET LOCAL check_function_bodies = off")
        cursor.execute(SNAPSHOT.read_text())
    return True
