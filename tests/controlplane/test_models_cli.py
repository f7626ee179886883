"""Models on the command line, and what a launch does when its model is missing."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from controlplane.cli import follow, models
from controlplane.cli.main import app
from rollouts.models import Model, Run
from rollouts.services.runs import projects
from rollouts.states import RunState
from tests.factories import make_run
from tests.model_files import make_warm, write_model

pytestmark = pytest.mark.django_db

RUN = ["launch", "reverse-text-rl", "max_steps=3", "optimizer.warmup_steps=0"]


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch) -> None:
    projects.ensure_admin()
    monkeypatch.setenv("ROLLYARD_URL", "http://127.0.0.1:8000")


def rollyard(*words: str, status: int = 0, **options: Any) -> Result:
    done = CliRunner().invoke(app, list(words), **options)
    assert done.exit_code == status, done.output + done.stderr
    return done


@pytest.mark.slow
def test_a_model_is_added_listed_shown_and_taken_away(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "mine")
    added = json.loads(rollyard("models", "add", "mine", str(directory), "--json").stdout)
    assert (added["model"], added["source"], added["parameters"]) == ("mine", str(directory), 40)
    assert [row["model"] for row in json.loads(rollyard("models", "list", "--json").stdout)] == ["mine"]
    assert str(directory) in rollyard("models", "list").stdout
    shown = json.loads(rollyard("models", "show", "mine", "--json").stdout)
    assert shown == added | {"runs": []}
    assert added["sha256"] in rollyard("models", "show", "mine").stdout
    assert "its files stay" in rollyard("models", "rm", "mine").stdout
    assert directory.exists()
    assert "no model 'mine'" in rollyard("models", "show", "mine", status=1).stderr


@pytest.mark.slow
def test_a_relative_directory_starts_where_the_command_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_model(tmp_path / "models" / "mine")
    monkeypatch.chdir(tmp_path)
    rollyard("models", "add", "mine", "models/mine")
    assert Model.objects.get().source == str(directory)
    monkeypatch.chdir(tmp_path / "models")
    rollyard("models", "add", "again", "../models/mine")
    assert Model.objects.get(name="again").source == str(directory)
    monkeypatch.chdir(tmp_path)
    for path in ("models/mine", "./models/mine"):
        run = json.loads(rollyard(*RUN, f"model.path={path}", "--json").stdout)["run"]
        assert Run.objects.get(key=run).parsed.model.path == str(directory)
    (tmp_path / "rows.jsonl").touch()
    environments = 'environments=[{name="gsm8k", args={data="rows.jsonl"}}]'
    run = json.loads(rollyard(*RUN, f"model.path={directory}", environments, "--json").stdout)["run"]
    assert Run.objects.get(key=run).parsed.environments[0].args["data"] == str(tmp_path / "rows.jsonl")


@pytest.mark.parametrize(
    ("source", "message"), [("/nowhere", "does not exist"), ("./nowhere", "does not exist"), ("/", "no config.json")]
)
def test_what_would_not_load_is_not_added(source: str, message: str) -> None:
    assert message in rollyard("models", "add", "mine", source, status=1).stderr


@pytest.mark.slow
def test_a_tiny_model_is_made(settings: Any, tmp_path: Path) -> None:
    settings.ROLLYARD_MODELS_DIR = tmp_path / "models"
    made = json.loads(rollyard("models", "make-tiny", "small", "--seed", "3", "--json").stdout)
    assert (made["origin"], made["architecture"], made["vocabulary"]) == ("made", "Qwen3ForCausalLM", 259)
    assert made["source"] == str(tmp_path / "models" / "small")
    assert "has a model small already" in rollyard("models", "make-tiny", "small", status=1).stderr


def test_a_launch_without_its_model_says_which_flag_makes_it() -> None:
    refused = rollyard(*RUN, status=1)
    assert "model.path: there is no model reverse-text-warm here yet: --make-model makes it first" in refused.stderr
    assert not Run.objects.exists()


def test_a_model_that_would_not_load_is_refused_at_its_key() -> None:
    refused = rollyard(*RUN, "model.path=/nowhere", "--json", status=1)
    assert "model.path: /nowhere does not exist" in refused.stderr
    assert [each["key"] for each in json.loads(refused.stdout)["problems"]] == ["model.path"]
    assert not Run.objects.exists()


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys of the runs that were followed to their end, which for the run of a model is that there is one."""
    keys: list[str] = []

    def follow_run(key: str, show: Any) -> int:
        keys.append(key)
        if Run.objects.get(key=key).parsed.register_as:
            make_warm(projects.ensure_default())
        return 0

    monkeypatch.setattr(follow, "follow", follow_run)
    return keys


def launched() -> tuple[Run, Run]:
    """The run that made the model, and the one that was asked for."""
    maker, run = Run.objects.order_by("id")
    assert (maker.kind, maker.parsed.register_as, maker.max_steps) == ("sft", "reverse-text-warm", 220)
    assert (run.kind, run.max_steps) == ("rl", 3)
    assert run.model is not None
    assert run.model.name == "reverse-text-warm"
    return maker, run


def test_a_flag_makes_the_model_first_and_then_launches(followed: list[str]) -> None:
    done = rollyard(*RUN, "--make-model", "--follow")
    maker, run = launched()
    assert followed == [maker.key, run.key]
    assert f"{maker.key} makes the model reverse-text-warm" in done.stdout


def test_a_person_is_asked_once(followed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(models, "agrees", lambda name: asked.append(name) is None)
    rollyard(*RUN)
    maker, _ = launched()
    assert (asked, followed) == (["reverse-text-warm"], [maker.key])


def test_a_run_that_makes_the_model_already_is_waited_for(followed: list[str]) -> None:
    maker = make_run(preset="reverse-text-sft", project=projects.ensure_default(), max_steps=220)
    rollyard(*RUN, "--make-model")
    assert launched()[0] == maker
    assert followed == [maker.key]


def test_a_model_that_could_not_be_made_is_the_end_of_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = {"state": RunState.FAILED, "reason_code": "text", "reason_params": {"text": "no memory"}}

    def fail(key: str, show: Any) -> int:
        run = Run.objects.get(key=key)
        Run.objects.filter(key=key).update(**failed, finished_at=run.created_at)
        return 1

    monkeypatch.setattr(follow, "follow", fail)
    refused = rollyard(*RUN, "--make-model", status=1)
    assert "the model reverse-text-warm was not made" in refused.stderr
    assert "no memory" in refused.stderr
    assert Run.objects.count() == 1
