"""The `rollyard` command line, as a person uses it, against the test database."""

import json
import os
from importlib.metadata import version
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from controlplane.cli import terminal
from controlplane.home import Home
from rollouts.models import ApiToken, Run
from tests.controlplane.command_line import Rollyard

pytestmark = [pytest.mark.slow, pytest.mark.django_db]
commits = pytest.mark.django_db(transaction=True)
"""For what a process of its own is to see."""

TINY = ["reverse-text-rl", "max_steps=3", "name=tiny"]


@commits
def test_launched_run_is_listed_shown_and_stopped(rollyard: Rollyard) -> None:
    launched = rollyard.process("launch", *TINY, "--json")
    assert launched.returncode == 0, launched.stderr
    key = json.loads(launched.stdout)["run"]
    run = Run.objects.get(key=key)
    assert (run.name, run.max_steps, str(run.origins["max_steps"])) == ("tiny", 3, "command line")

    assert [row["run"] for row in json.loads(rollyard.process("runs", "list", "--json").stdout)] == [key]
    shown = json.loads(rollyard.process("runs", "show", key, "--json").stdout)
    assert (shown["state"], shown["origins"]["max_steps"], shown["events"][0]["state"]) == (
        "pending",
        "command line",
        "pending",
    )
    assert "command line" in rollyard("runs", "show", key).stdout

    summary = json.loads(rollyard.process("runs", "summary", key, "--json").stdout)
    assert (summary["run"], summary["steps"], summary["eval_reward_before"]) == (key, 0, None)

    stopped = rollyard.process("runs", "stop", key, "--reason", "enough")
    assert (stopped.returncode, stopped.stdout) == (0, f"{key} is stopping\n")
    run.refresh_from_db()
    assert (run.state, run.state_reason) == ("stopping", "enough")


def test_senseless_config_is_refused_with_key_and_fix(rollyard: Rollyard) -> None:
    refused = rollyard("launch", *TINY, "batch.batch_size=9", "--json")
    assert refused.returncode == 1
    assert [each["key"] for each in json.loads(refused.stdout)["problems"]] == ["batch.batch_size"]
    assert "batch.batch_size" in refused.stderr
    assert not Run.objects.exists()


def test_environment_variable_overrides_and_is_named_as_origin(rollyard: Rollyard) -> None:
    launched = rollyard("launch", *TINY, "--json", ROLLYARD__SEED="41")
    run = Run.objects.get(key=json.loads(launched.stdout)["run"])
    assert (run.config["seed"], str(run.origins["seed"])) == (41, "environment ROLLYARD__SEED")


def test_unknown_run_is_an_error_without_a_traceback(rollyard: Rollyard) -> None:
    done = rollyard("runs", "show", "nothing")
    assert (done.returncode, done.stderr) == (1, "error: no run 'nothing'\n")


@pytest.mark.parametrize("what", ["runs", "evaluations", "endpoints", "datasets", "trust"])
def test_a_list_of_nothing_says_what_makes_the_first_one(rollyard: Rollyard, what: str) -> None:
    listed = rollyard(what, "list")
    assert (listed.returncode, listed.stdout) == (0, "")
    assert "`rollyard " in listed.stderr
    assert rollyard(what, "list", "--json").stdout == "[]\n"


@commits
def test_waiting_for_a_run_tells_whether_it_finished(rollyard: Rollyard) -> None:
    key = json.loads(rollyard("launch", *TINY, "--json").stdout)["run"]
    Run.objects.filter(key=key).update(
        state="failed", reason_code="text", reason_params={"text": "no GPU"}, finished_at="2026-01-01T00:00Z"
    )
    done = rollyard.process("runs", "wait", key)
    assert (done.returncode, done.stdout) == (1, f"{key} failed: no GPU\n")


@commits
def test_created_token_works_on_the_api_and_is_stored_hashed(rollyard: Rollyard, client: Client) -> None:
    done = rollyard.process("token", "create", "ci", "--scope", "read", "--json")
    token = json.loads(done.stdout)["token"]
    assert token not in repr(list(ApiToken.objects.values()))
    assert client.get("/api/v1/runs").status_code == 401
    assert client.get("/api/v1/runs", headers={"Authorization": f"Token {token}"}).status_code == 200


def test_unknown_scope_is_refused(rollyard: Rollyard) -> None:
    done = rollyard("token", "create", "ci", "--scope", "everything")
    assert done.returncode == 2
    assert "everything" in done.stderr


@commits
def test_login_link_signs_in(rollyard: Rollyard, client: Client) -> None:
    url = json.loads(rollyard.process("login-link", "--json", ROLLYARD_URL="http://here").stdout)["login_url"]
    assert url.startswith("http://here/login/link/")
    assert client.get(url.removeprefix("http://here")).status_code == 302
    assert client.session["_auth_user_id"] == str(User.objects.get(username="admin").pk)


@commits
def test_doctor_finds_a_sound_installation_sound(rollyard: Rollyard) -> None:
    rows = {row["name"]: row for row in json.loads(rollyard.process("doctor", "--json").stdout)}
    for name in ("home", "database", "fsync", "synchronous_commit", "migrations", "redis", "torch"):
        assert rows[name]["status"] == "ok", rows[name]


@commits
def test_doctor_says_what_the_installation_defends_and_names_the_fix_of_what_it_does_not(rollyard: Rollyard) -> None:
    rows = {row["name"]: row for row in json.loads(rollyard.process("doctor", "--security", "--json").stdout)}
    assert {rows[name]["status"] for name in ("reached by", "sandbox", "superusers", "trust")} == {"ok"}
    done = rollyard.process("doctor", "--security", "--json", ROLLYARD_UNSAFE_NO_SANDBOX="1", ROLLYARD_SECRET_KEY="abc")
    assert done.returncode == 1
    found = [row for row in json.loads(done.stdout) if row["status"] == "fail"]
    assert {"start", "sandbox"} <= {row["name"] for row in found}
    assert all(row["fix"] for row in found)


@commits
def test_doctor_names_the_fix_of_everything_that_is_wrong(rollyard: Rollyard) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {connection.settings_dict['NAME']} SET synchronous_commit = off")
    done = rollyard.process("doctor", "--json", REDIS_URL="unix:///nowhere/redis.sock?db=0")
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {connection.settings_dict['NAME']} RESET synchronous_commit")
    wrong = {row["name"]: row for row in json.loads(done.stdout) if row["status"] == "fail"}
    assert done.returncode == 1
    assert "redis" in wrong
    assert all(row["fix"] for row in wrong.values())


@commits
def test_command_without_a_database_says_how_to_get_one(rollyard: Rollyard) -> None:
    done = rollyard.process("runs", "list", DATABASE_URL="postgresql://nobody@/none?host=/nowhere")
    assert done.returncode == 1
    assert "start `rollyard up`, or set DATABASE_URL" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_looks_for_runs_where_the_up_of_its_home_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {"pid": os.getpid(), "url": "http://up", "runs": "/disk/runs"}
    Home(tmp_path).record_file.write_text(json.dumps(record))
    environ = {"HOME": str(tmp_path), "RUNS_DIR": "runs", "URL": record["url"], "DATABASE_POOL_SIZE": "0"}
    for name, value in environ.items():
        monkeypatch.setenv(f"ROLLYARD_{name}", value)
    terminal.connect(check_database=False)
    assert Home.from_environ().runs == Path("/disk/runs")


@commits
def test_help_and_version_are_those_of_the_program(rollyard: Rollyard) -> None:
    assert rollyard.process("--version").stdout.split() == ["rollyard", version("rollyard")]
    for words in (["-h"], ["--help"], ["launch", "-h"]):
        done = rollyard.process(*words)
        assert (done.returncode, "Usage: " in done.stdout) == (0, True)
    assert "launch" in rollyard.process("-h").stdout


@commits
def test_unknown_commands_go_to_django(rollyard: Rollyard) -> None:
    assert "[X] 0001_create_store" in rollyard.process("showmigrations", "rollouts").stdout
    assert "reconcile [-h]" in rollyard.process("reconcile", "--help").stdout, "one of our own"
