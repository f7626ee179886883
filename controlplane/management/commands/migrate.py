"""`manage.py migrate`, by the role that owns the tables; then the application gets its rights.

`rollyard up` does the same, and so does whoever makes a database for tests.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.core.management.commands import migrate
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor

from controlplane import rights, schema

_NOT_ALL = ("app_label", "plan", "check_unapplied", "fake", "fake_initial", "prune")
"""Options of a `migrate` that does something else than to bring a database up to today."""


class Command(migrate.Command):
    def handle(self, *args: Any, **options: Any) -> None:
        """Migrate as the owner, if there is one apart from the application."""
        connection = connections[options["database"]]
        if settings.DATABASE_OWNER is None or options["database"] != DEFAULT_DB_ALIAS:
            self._migrate(connection, options)
            return
        application = _role(connection)
        with _logged_in(connection, settings.DATABASE_OWNER):
            self._migrate(connection, options)
            executor = MigrationExecutor(connection)
            if executor.migration_plan(executor.loader.graph.leaf_nodes()):
                self.stderr.write("Not everything is migrated: the rights of the application stay what they were.")
            elif application != _role(connection):
                rights.grant(connection, application)

    def _migrate(self, connection: BaseDatabaseWrapper, options: dict[str, Any]) -> None:
        """Begin with the snapshot where all is asked for; what it does not have yet, migrations add."""
        if not any(options[name] for name in _NOT_ALL):
            schema.load(connection)
        super().handle(**options)


@contextmanager
def _logged_in(connection: BaseDatabaseWrapper, as_whom: dict[str, Any]) -> Iterator[None]:
    """Let a connection be somebody else's while the block lasts. For a process of one thread."""
    before = connection.settings_dict
    login = {key: as_whom[key] for key in ("USER", "PASSWORD", "HOST", "PORT", "OPTIONS")}
    try:
        reopen(connection, {**before, **login})
        yield
    finally:
        reopen(connection, before)


def reopen(connection: BaseDatabaseWrapper, settings_dict: dict[str, Any]) -> None:
    """Let a connection be another's, or to another database, from its next query on."""
    connection.close()
    connection.close_pool()  # type: ignore[attr-defined]
    connection.settings_dict = settings_dict


def _role(connection: BaseDatabaseWrapper) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_user")
        [role] = cursor.fetchone()
    return str(role)
