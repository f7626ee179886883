"""What the role that the application logs in as may do with the store: given, and looked at."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import sql

from controlplane.safety import UnsafeSettings

_GRANTS = Path(__file__).with_name("grants.sql").read_text()
_SYSTEM_USER_SINCE = 160_000
TRUST = "trust"
PROOF_FIX = "Let pg_hba.conf ask for scram-sha-256, or connect over TLS with a certificate."


@dataclass(frozen=True)
class DatabaseFacts:
    """What whoever gets hold of a connection of ours could do with it."""

    role: str
    is_superuser: bool
    """It reads files and runs programs of the database's machine."""
    owns_tables: bool
    makes_tables: bool
    rewrites_events: bool
    """It may change or delete what happened."""
    proved_by: str
    """How the connection proved who it is (`scram-sha-256`); `trust`: not at all; empty: the server cannot say."""

    @property
    def fault(self) -> str:
        """What is weaker than it could be, in a sentence; empty when nothing is."""
        if self.is_superuser:
            return f"{self.role} is a superuser: SQL that somebody slips in runs programs on the database's machine."
        if self.owns_tables or self.rewrites_events:
            return f"{self.role} may change and delete events: SQL that somebody slips in rewrites what happened."
        return f"{self.role} may make tables: SQL that somebody slips in fills the disk." if self.makes_tables else ""


FIX = "Give DATABASE_OWNER_URL a role that owns the tables and migrates, and DATABASE_URL one that is not its member."


def grant(connection: BaseDatabaseWrapper, role: str) -> None:
    """Let a role do with the tables what `grants.sql` says, and no more. The connection is their owner's.

    All at once: whoever uses the role meanwhile notices nothing.
    """
    statements = sql.SQL(_GRANTS).format(application=sql.Identifier(role))
    with connection.cursor() as cursor:
        cursor.execute(statements)  # sent together, they are one transaction


def database_facts(connection: BaseDatabaseWrapper) -> DatabaseFacts:
    """Look at the role of a connection to a migrated database."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT current_user, rolsuper,
                   EXISTS (SELECT FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
                                                      AND pg_has_role(relowner, 'MEMBER')),
                   has_schema_privilege('public', 'CREATE'),
                   has_any_column_privilege('rollouts_event', 'UPDATE')
                   OR has_table_privilege('rollouts_event', 'DELETE, TRUNCATE')
            FROM pg_roles WHERE rolname = current_user
            """
        )
        role, is_superuser, owns, creates, rewrites = cursor.fetchone()
        proved_by = _proof(cursor, connection.pg_version)  # type: ignore[attr-defined]
    return DatabaseFacts(role, is_superuser, owns, creates, rewrites, proved_by)


def refuse_trust(connection: BaseDatabaseWrapper) -> None:
    """Raise UnsafeSettings for a server that lets in whoever says to be us. One that is away is not judged.

    It connects by itself: Django's own connections refuse to where an event loop runs, as while uvicorn imports us.
    """
    try:
        with psycopg.connect(**connection.get_connection_params()) as connected:
            proved_by = _proof(connected.cursor(), connected.info.server_version)
    except psycopg.OperationalError:
        return
    if proved_by == TRUST:
        raise UnsafeSettings(
            "The database takes a connection's word for who it is (trust in its pg_hba.conf): who reaches it may do "
            f"all that the application may. {PROOF_FIX}"
        )


def _proof(cursor: Any, version: int) -> str:
    if version < _SYSTEM_USER_SINCE:
        return ""
    # Every method but trust leaves a name.
    cursor.execute("SELECT coalesce(split_part(system_user, ':', 1), %s)", [TRUST])
    [proved_by] = cursor.fetchone()
    return str(proved_by)
