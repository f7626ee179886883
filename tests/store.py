"""The store of a test session: the embedded PostgreSQL, where the application's role may make databases for tests.

Tests run with the rights that the product has. Who has to go beyond them, to forge what the product never writes, says
so: `with beyond_rights():`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings
from django.core.management.commands import flush
from django.db import connection

from controlplane.home import APPLICATION, OWNER, Home
from controlplane.up import cluster, embedded
from controlplane.up.accounts import account_of_postgres

_MAKES_DATABASES = f"""\
ALTER ROLE {APPLICATION} CREATEDB;

GRANT {OWNER} TO {APPLICATION} WITH INHERIT FALSE;

GRANT CREATE ON SCHEMA public TO {OWNER};

"""


@contextmanager
def running(home: Home) -> Iterator[None]:
    """Run both servers; databases are made after `template1`, where the owner may make tables."""
    program = embedded.prepare_postgres(home)
    account = account_of_postgres()
    binaries = embedded.postgres_binaries(home, account)
    cluster.single_user(binaries, account, home.postgres_data, "template1", _MAKES_DATABASES)
    admission = home.postgres_data / "pg_hba.conf"
    admission.write_text(f"local all {APPLICATION},{OWNER} scram-sha-256\n{admission.read_text()}")
    with (
        embedded.serving(home, program, embedded.postgres_answers),
        embedded.serving(home, embedded.prepare_redis(home), embedded.redis_answers),
    ):
        yield


@contextmanager
def beyond_rights() -> Iterator[None]:
    """Be the owner of the tables on this thread's connection: to forge what the product cannot write. Nests."""
    if settings.DATABASE_OWNER is None:
        yield
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_user")
        if cursor.fetchone() == (OWNER,):
            yield
            return
        cursor.execute(f"SET ROLE {OWNER}")
    try:
        yield
    finally:
        if not connection.needs_rollback and connection.connection is not None:
            with connection.cursor() as cursor:
                cursor.execute("RESET ROLE")


def url() -> str:
    """The test database's, for a process of its own."""
    options = connection.settings_dict
    login = quote(options["USER"]) + (f":{quote(options['PASSWORD'])}" if options["PASSWORD"] else "")
    host, port = options["HOST"], options["PORT"]
    query = {key: options["OPTIONS"][key] for key in ("passfile",) if key in options["OPTIONS"]}
    if host.startswith("/") or not host:
        query["host"] = host or "/tmp"
        return f"postgresql://{login}@/{options['NAME']}?{urlencode(query)}"
    return f"postgresql://{login}@{host}{f':{port}' if port else ''}/{options['NAME']}?{urlencode(query)}"


class FlushAsOwner(flush.Command):
    """Emptying tables is not among the application's rights."""

    def handle(self, **options: Any) -> None:
        with beyond_rights():
            super().handle(**options)
