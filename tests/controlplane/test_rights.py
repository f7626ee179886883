"""The store of an installation as `rollyard up` prepares it: what the application may do, and what it is refused."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.apps import apps
from django.db import connection
from psycopg.errors import InsufficientPrivilege

from controlplane import rights
from controlplane.home import APPLICATION, OWNER, Home
from controlplane.up import cluster, embedded
from controlplane.up.accounts import account_of_postgres
from rollouts.services.transitions import TRANSITIONS
from tests import store

GRANTS = (Path(rights.__file__).with_name("grants.sql")).read_text()
NO_MODEL = {"django_migrations"}


def rollyard(home: Home, *words: str, expected: int = 0, **environ: str) -> str:
    """Run a command as a person on that home does; return what it said."""
    inherited = {name: value for name, value in os.environ.items() if name not in {"DATABASE_URL", "REDIS_URL"}}
    settings = {"ROLLYARD_HOME": str(home.path), "DJANGO_SETTINGS_MODULE": "controlplane.settings"}
    argv = [sys.executable, "-m", "controlplane.cli.main", *words]
    done = subprocess.run(
        argv, env=inherited | settings | environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == expected, done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def installation() -> Iterator[Home]:
    """Both servers, prepared, with a run in the store."""
    with tempfile.TemporaryDirectory(prefix="rollyard-rights-", ignore_cleanup_errors=True) as directory:
        os.chmod(directory, 0o711)
        home = Home(Path(directory) / "home")
        with embedded.running(home):
            rollyard(home, "prepare")
            rollyard(home, "launch", "external-trainer", "--json")
            rollyard(home, "shell", "-c", _CLOSE_ROWS)
            yield home


def test_every_table_of_the_store_is_named_in_the_grants() -> None:
    named = set(re.findall(r"^    (\w+)[,\n]| ON (\w+) TO", GRANTS, re.MULTILINE))
    named_tables = {first or second for first, second in named}
    tables = {model._meta.db_table for model in apps.get_models(include_auto_created=True)}
    assert tables | NO_MODEL == named_tables, "say in controlplane/grants.sql what the application does with it"


@pytest.mark.django_db
def test_the_database_knows_the_last_states_of_every_kind_of_row() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT tgrelid::regclass::text, pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname = 'keep_last_state'"
        )
        kept = {table: set(re.findall(r"'(\w+)'::", definition)) for table, definition in cursor.fetchall()}
    last_states = {
        model._meta.db_table: {value for value, _ in model._meta.get_field("state").choices} - moves.keys()
        for model, moves in TRANSITIONS.items()
    }
    assert kept == {table: states for table, states in last_states.items() if states}


@pytest.mark.django_db
@pytest.mark.skipif("DATABASE_URL" in os.environ, reason="one role does everything there")
def test_tests_run_with_the_rights_of_the_product() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_user")
        assert cursor.fetchone() == (APPLICATION,)
        with store.beyond_rights():
            cursor.execute("SELECT current_user")
            assert cursor.fetchone() == (OWNER,)
    facts = rights.database_facts(connection)
    assert (facts.role, facts.is_superuser, facts.rewrites_events) == (APPLICATION, False, False)


@pytest.mark.slow
class TestInstallation:
    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE rollouts_event SET actor = 'somebody else'",
            "DELETE FROM rollouts_event",
            "TRUNCATE rollouts_event CASCADE",
            "ALTER TABLE rollouts_event DISABLE TRIGGER ALL",
            "DROP TABLE rollouts_event CASCADE",
            "UPDATE rollouts_batch SET sha256 = ''",
            "DELETE FROM rollouts_batch",
            "UPDATE rollouts_batchitem SET advantages = '[]'",
            "DELETE FROM rollouts_batchitem",
            "UPDATE rollouts_rollout SET reward = 1",
            "UPDATE rollouts_grouptokens SET token_ids = ''",
            "DELETE FROM rollouts_scoredgroup",
            "UPDATE rollouts_run SET config = '{}'",
            "UPDATE rollouts_run SET created_by_id = NULL",
            "DELETE FROM rollouts_run",
            "UPDATE rollouts_scoredgroup SET state = 'ready'",
            "UPDATE rollouts_scoredgroup SET reason_code = 'lagged'",
            "UPDATE rollouts_scoredgroup SET reward_mean = 1",
            "UPDATE rollouts_scoredgroup SET problem_key = 'another', rollout_count = 9",
            "UPDATE rollouts_trust SET withdrawn_actor = '', withdrawn_at = NULL",
            "UPDATE rollouts_trust SET withdrawn_actor = 'somebody else'",
            "ALTER TABLE rollouts_trust DISABLE TRIGGER keep_withdrawal",
            "UPDATE rollouts_endpoint SET removed_actor = '', removed_at = NULL",
            "UPDATE rollouts_endpoint SET base_url = 'http://elsewhere'",
            "DROP FUNCTION rollouts_keep CASCADE",
            "SET session_replication_role = replica",
            "UPDATE rollouts_replay SET reason = ''",
            "UPDATE rollouts_policyversion SET manifest_sha256 = ''",
            "DELETE FROM rollouts_checkpoint",
            "UPDATE django_admin_log SET change_message = ''",
            "DELETE FROM django_admin_log",
            "DELETE FROM auth_user",
            "UPDATE django_migrations SET name = ''",
            "COPY (SELECT 1) TO PROGRAM 'cat'",
            "COPY rollouts_event FROM PROGRAM 'cat'",
            "COPY (SELECT 1) TO '/tmp/rollyard-was-here'",
            "SELECT pg_read_file('/etc/passwd')",
            "SELECT pg_ls_dir('/')",
            "SELECT lo_import('/etc/passwd')",
            "SELECT pg_reload_conf()",
            "SELECT * FROM pg_authid",
            "SELECT * FROM pg_hba_file_rules",
            "CREATE ROLE another",
            f"ALTER ROLE {APPLICATION} SUPERUSER",
            f"ALTER ROLE {OWNER} PASSWORD 'known'",
            "ALTER SYSTEM SET fsync = off",
            "ALTER DATABASE rollyard SET synchronous_commit = off",
            "CREATE TABLE mine (id int)",
            "CREATE TEMP TABLE mine (id int)",
            "CREATE SCHEMA mine",
            "CREATE DATABASE mine",
            "CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
            f"SET ROLE {OWNER}",
            "SET ROLE postgres",
            "SET SESSION AUTHORIZATION postgres",
            f"GRANT {OWNER} TO {APPLICATION}",
            "SELECT setval('rollouts_event_id_seq', 1)",
        ],
    )
    def test_the_application_is_refused(self, installation: Home, statement: str) -> None:
        connected = psycopg.connect(installation.database_url, autocommit=True)
        with connected as application, pytest.raises(InsufficientPrivilege):
            application.execute(statement)

    @pytest.mark.parametrize(
        "login",
        ["user=postgres", "user=root", f"user={OWNER}", "dbname=postgres", "dbname=template1", "password=guessed"],
    )
    def test_nobody_else_is_let_in_and_nobody_elsewhere(self, installation: Home, login: str) -> None:
        with pytest.raises(psycopg.OperationalError, match=r"pg_hba.conf rejects|no password supplied|authentication"):
            psycopg.connect(_with(installation, login))

    def test_the_application_proves_who_it_is_and_owns_nothing(self, installation: Home) -> None:
        said = rollyard(installation, "shell", "-c", _SAY_FACTS)
        assert json.loads(said.splitlines()[-1]) == {
            "role": APPLICATION,
            "is_superuser": False,
            "owns_tables": False,
            "makes_tables": False,
            "rewrites_events": False,
            "proved_by": "scram-sha-256",
        }

    def test_preparing_again_gives_the_same_rights_and_takes_away_what_a_hand_has_given(
        self, installation: Home
    ) -> None:
        before = _rights(installation)
        with psycopg.connect(installation.owner_database_url, autocommit=True) as owner:
            owner.execute(f"GRANT DELETE ON rollouts_event TO {APPLICATION}")
        assert _rights(installation) != before
        assert "WARNING" not in rollyard(installation, "prepare")
        assert _rights(installation) == before

    def test_a_person_migrates_as_the_owner(self, installation: Home) -> None:
        before = _rights(installation)
        assert "Not everything is migrated" in rollyard(installation, "migrate", "rollouts", "0038")
        rollyard(installation, "migrate")
        assert _rights(installation) == before

    def test_people_keys_and_links_are_made_by_commands(self, installation: Home) -> None:
        token = json.loads(rollyard(installation, "token", "create", "mine", "--scope", "read", "--json"))
        assert token["token"].startswith("ry_")
        rollyard(
            installation,
            "createsuperuser",
            "--noinput",
            "--username",
            "ada",
            "--email",
            "",
            DJANGO_SUPERUSER_PASSWORD="x",
        )
        assert "/login/link/" in rollyard(installation, "login-link", "--user", "ada")
        with psycopg.connect(installation.database_url) as application:
            assert application.execute("SELECT count(*) FROM auth_user WHERE username = 'ada'").fetchone() == (1,)


@pytest.mark.slow
class TestServerOfYourOwn:
    """DATABASE_URL names a role of somebody else's PostgreSQL."""

    @pytest.fixture
    def server(self, temporary_home: Home) -> Iterator[Home]:
        """With two roles of one password, a third that is asked for none, and a database that belongs to the first."""
        program = embedded.prepare_postgres(temporary_home)
        account = account_of_postgres()
        binaries = embedded.postgres_binaries(temporary_home, account)
        roles = (
            "CREATE ROLE theirs LOGIN PASSWORD 'p';\n\nCREATE ROLE app LOGIN PASSWORD 'p';\n\n"
            "CREATE ROLE anybody LOGIN;\n\nCREATE DATABASE shop OWNER theirs;\n\n"
        )
        cluster.single_user(binaries, account, temporary_home.postgres_data, "postgres", roles)
        admission = temporary_home.postgres_data / "pg_hba.conf"
        lines = "local shop theirs,app scram-sha-256\nlocal shop anybody trust\n"
        admission.write_text(f"{lines}{admission.read_text()}")
        with (
            embedded.serving(temporary_home, program, embedded.postgres_answers),
            embedded.serving(temporary_home, embedded.prepare_redis(temporary_home), embedded.redis_answers),
        ):
            yield temporary_home

    def test_one_role_does_everything_and_a_warning_says_what_that_means(self, server: Home) -> None:
        said = rollyard(server, "prepare", DATABASE_URL=_url(server, "theirs"))
        assert "theirs may change and delete events" in said
        assert rights.FIX in said
        rollyard(server, "launch", "external-trainer", "--json", DATABASE_URL=_url(server, "theirs"))

    def test_with_an_owner_beside_it_the_application_has_no_more_than_it_needs(self, server: Home) -> None:
        urls = {"DATABASE_URL": _url(server, "app"), "DATABASE_OWNER_URL": _url(server, "theirs")}
        assert "may change and delete events" not in rollyard(server, "prepare", **urls)
        rollyard(server, "launch", "external-trainer", "--json", DATABASE_URL=urls["DATABASE_URL"])
        with psycopg.connect(urls["DATABASE_URL"]) as app:
            with pytest.raises(InsufficientPrivilege):
                app.execute("DELETE FROM rollouts_event")
            app.rollback()
            with pytest.raises(InsufficientPrivilege):
                app.execute("CREATE TABLE mine (id int)")

    @pytest.mark.parametrize(
        "words", [("prepare",), ("shell", "-c", "import controlplane.asgi")], ids=["up", "the application"]
    )
    def test_nothing_starts_on_a_server_that_takes_a_connections_word(
        self, server: Home, words: tuple[str, ...]
    ) -> None:
        said = rollyard(server, *words, DATABASE_URL=_url(server, "anybody"), expected=1)
        assert rights.PROOF_FIX in said


_CLOSE_ROWS = """
from rollouts.models import Run, RunEnvironment, ScoredGroup
from rollouts.services import endpoints, trust
from rollouts.services.transitions import move
run = Run.objects.get()
environment = RunEnvironment.objects.get_or_create(run=run, name="reverse_text")[0]
group = ScoredGroup.objects.create(run=run, environment=environment, state="playing")
move(group, to="failed", actor="somebody", settled_at=run.created_at)
trust.allow("loss", "package.loss", actor="somebody")
trust.withdraw("loss", "package.loss", actor="somebody")
endpoints.add(name="judge", base_url="https://a.example/v1", model="m", is_for_all=True, actor="somebody")
endpoints.remove("judge", actor="somebody")
"""

_SAY_FACTS = """
import json
from dataclasses import asdict
from django.db import connection
from controlplane import rights
print(json.dumps(asdict(rights.database_facts(connection))))
"""


def _with(home: Home, changed: str) -> str:
    """How the application connects, but for one parameter."""
    name, _, value = changed.partition("=")
    parameters = psycopg.conninfo.conninfo_to_dict(home.database_url) | {name: value}
    return psycopg.conninfo.make_conninfo("", **{key: str(each) for key, each in parameters.items()})


def _url(home: Home, role: str) -> str:
    return f"postgresql://{role}:p@/shop?host={home.postgres_socket_dir}"


def _rights(home: Home) -> list[tuple[object, ...]]:
    """Who may do what with every table, column and sequence."""
    with psycopg.connect(home.owner_database_url) as owner:
        tables = "SELECT relname, relacl::text FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        columns = (
            "SELECT attrelid::regclass::text || '.' || attname, attacl::text FROM pg_attribute WHERE attacl IS NOT NULL"
        )
        return owner.execute(f"{tables} UNION ALL {columns} ORDER BY 1").fetchall()
