"""Datasets on the command line."""

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import Result
from typer.testing import CliRunner

from controlplane.cli.main import app
from rollouts.models import Dataset, Run
from rollouts.services.runs import projects
from tests.factories import make_project
from tests.rollouts import story
from tests.rollouts.datasets.test_importing import told
from tests.rollouts.datasets.test_making import played

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch) -> None:
    projects.ensure_admin()
    monkeypatch.setenv("ROLLYARD_URL", "http://127.0.0.1:8000")


@pytest.fixture
def run() -> Run:
    run = story.launch(project=make_project("default"))
    story.submit(run, [played("a", [0.5, 1.0]), played("b", [0.0, 0.25])], actor="api:t")
    return run


def rollyard(*words: str, status: int = 0) -> Result:
    done = CliRunner().invoke(app, ["datasets", *words])
    assert done.exit_code == status, done.output + done.stderr
    return done


def test_a_version_is_made_listed_shown_and_compared(run: Run) -> None:
    made = json.loads(rollyard("make", "good", "--run", run.key, "--best", "1", "--json").stdout)
    assert (made["version"], made["members"]) == ("good@1", 2)
    assert made["statistics"]["figures"]["train"] == 2
    assert "good@2: 4 examples" in rollyard("make", "good", "--run", run.key, "--licence", "CC0").stdout
    assert "good@2" in rollyard("list").stdout
    [listed] = json.loads(rollyard("list", "--json", "--project", "default").stdout)
    assert (listed["name"], listed["newest"]) == ("good", 2)
    assert "0 exact, 0 near among 4" in rollyard("show", "good").stdout
    assert json.loads(rollyard("show", "good@1", "--json").stdout) == made | {"licence": "CC0"}
    assert json.loads(rollyard("diff", "good@1", "good@2", "--json").stdout)["added"] == 2
    assert "only in the second" in rollyard("diff", "good@1", "good").stdout


def test_what_leaves_nothing_or_is_not_there_is_told(run: Run) -> None:
    assert "4 have a lower reward" in rollyard("make", "good", "--run", run.key, "--min-reward", "2", status=1).stderr
    assert "is no run" in rollyard("make", "good", "--run", "nosuch", status=1).stderr
    assert "there is no dataset none" in rollyard("show", "none", status=1).stderr
    assert (
        "has no version 3"
        in (rollyard("make", "good", "--run", run.key) and rollyard("show", "good@3", status=1)).stderr
    )
    assert "There is no dataset yet" in rollyard("list", "--project", make_project("empty").slug).stderr


def test_a_file_is_imported_and_bad_lines_are_told_by_number(tmp_path: Path) -> None:
    make_project("default")
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"\n".join([msgspec.json.encode(told("a")), b"{", msgspec.json.encode(told("b"))]))
    assert "rows.jsonl:2" in rollyard("import", "rows", str(file), status=1).stderr
    assert not Dataset.objects.exists()
    done = rollyard("import", "rows", str(file), "--bad-lines", "skip")
    assert "rows@1: 2 examples" in done.stdout
    assert "left out: rows.jsonl:2" in done.stderr
