"""The snapshot of the schema is what the migrations make. Set ROLLYARD_UPDATE_SNAPSHOTS=1 to write it anew.

Here too migrations are run one after the other, as an installation of any age will, and take along what was stored.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder

from controlplane import schema
from controlplane.management.commands.migrate import reopen
from controlplane.up import cluster, embedded
from controlplane.up.accounts import account_of_postgres
from rollouts.models import RunEnvironment

pytestmark = [
    pytest.mark.skipif("DATABASE_URL" in os.environ, reason="needs pg_dump of the embedded PostgreSQL"),
    pytest.mark.django_db(databases=["default"], transaction=True),
]
_SESSION = re.compile(r"(--|SET |SELECT pg_catalog\.set_config|\\)")
"""How lines begin that are of the session which loads a dump, and no part of the schema."""
_FILLED_BY_DJANGO = {"auth_permission", "django_content_type", "django_migrations"}


@contextmanager
def empty_database(name: str) -> Iterator[None]:
    """Let the connection of the tests be to a database that has no table, as the role that makes them."""
    before = connection.settings_dict
    with connection.cursor() as cursor:
        cursor.execute(f'CREATE DATABASE "{name}" TEMPLATE template1')
    login = {key: settings.DATABASE_OWNER[key] for key in ("USER", "PASSWORD", "HOST", "PORT", "OPTIONS")}
    reopen(connection, {**before, **login, "NAME": name})
    try:
        yield
    finally:
        reopen(connection, before)
        with connection.cursor() as cursor:
            cursor.execute(f'DROP DATABASE "{name}"')


def dumped() -> str:
    """The schema in PostgreSQL's own words, and which migrations it is the work of."""
    login = settings.DATABASE_OWNER
    binaries = embedded.postgres_binaries(settings.HOME, account_of_postgres())
    argv: list[Any] = [binaries / "pg_dump", "--schema-only", "--no-owner", "--no-privileges", "--no-sync"]
    argv += ["--host", login["HOST"], "--username", login["USER"], connection.settings_dict["NAME"]]
    environ = {"PGPASSWORD": settings.HOME.database_password(login["USER"])}
    said = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert said.returncode == 0, said.stderr
    lines = [line for line in said.stdout.splitlines() if not _SESSION.match(line)]
    made_by = MigrationRecorder.Migration.objects.order_by("app", "name").values_list("app", "name")
    rows = ",\n".join(f"    ('{app}', '{name}', now())" for app, name in made_by)
    record = f"INSERT INTO public.django_migrations (app, name, applied) VALUES\n{rows};\n"
    return re.sub(r"\n{2,}", "\n\n", "\n".join(lines)).strip() + "\n\n" + record


@contextmanager
def a_row_of_before(migration: str) -> Iterator[None]:
    """An environment of a run, stored when the schema was that of this migration; gone at the end."""
    loader = MigrationExecutor(connection).loader
    name = loader.get_migration_by_prefix("rollouts", migration).name
    models = loader.project_state(("rollouts", name)).apps
    project = models.get_model("rollouts", "Project").objects.create(slug="of-before", name="Of before")
    run = models.get_model("rollouts", "Run").objects.create(
        key="ofbefore00", project=project, kind="rl", config={}, max_steps=1
    )
    models.get_model("rollouts", "RunEnvironment").objects.create(
        run=run, name="words", args={}, cursor=6, passed=3, weight=4.0
    )
    yield
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM rollouts_runenvironment; DELETE FROM rollouts_run; DELETE FROM rollouts_project")


@pytest.mark.slow
def test_an_empty_database_gets_from_the_snapshot_what_the_migrations_make(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as by_migrations, empty_database("schema_by_migrations"):
        by_migrations.setattr(schema, "load", lambda connection: False)
        call_command("migrate", "rollouts", "0028", verbosity=0)
        with a_row_of_before("0028"):
            call_command("migrate", verbosity=0)
            # Those from before 0029 took the time that their weight says.
            assert RunEnvironment.objects.get().turn_time == 2.25
        migrated = dumped()
        with connection.cursor() as cursor:
            for table in set(connection.introspection.table_names(cursor)) - _FILLED_BY_DJANGO:
                cursor.execute(f"SELECT count(*) FROM {table}")
                assert cursor.fetchone() == (0,), f"{table}: a snapshot of the schema has no rows"
    # PostgreSQL words a constraint's list in another way once it has read what it wrote; from then on in the same.
    with monkeypatch.context() as read_once, empty_database("schema_read_once"):
        read_once.setattr(schema, "SNAPSHOT", tmp_path / "schema.sql")
        schema.SNAPSHOT.write_text(migrated)
        assert schema.load(connection)
        settled = dumped()
    if os.environ.get("ROLLYARD_UPDATE_SNAPSHOTS"):
        schema.SNAPSHOT.write_text(settled)
    assert schema.SNAPSHOT.read_text() == settled
    assert int(cluster.VERSION) == schema.WRITTEN_BY
    with empty_database("schema_by_snapshot"):
        call_command("migrate", verbosity=0)
        assert dumped() == settled
        assert not schema.load(connection), "it has tables now"
