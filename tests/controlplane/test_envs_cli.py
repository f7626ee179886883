"""Virtual environments on the command line."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from controlplane.cli.main import app
from environments import venvs


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("ROLLYARD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def rollyard(*words: str, status: int = 0) -> Result:
    done = CliRunner().invoke(app, ["envs", *words])
    assert done.exit_code == status, done.output + done.stderr
    return done


def test_without_any_the_recipes_are_named() -> None:
    assert rollyard("list", "--json").stdout == "[]\n"
    known = "atropos, gymnasium, open_spiel, openenv, reasoning_gym, verifiers"
    assert rollyard("list").stdout == f"Not installed, and known: {known}\n"


def test_an_unknown_name_needs_packages() -> None:
    assert "mine is not a recipe" in rollyard("install", "mine", status=1).stderr
    assert "there is no virtual environment mine" in rollyard("remove", "mine", status=1).stderr


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What would be run, and installed; with venv, uv and pip themselves: tests/environments/test_venvs.py."""
    ran: list[list[str]] = []

    def run(command: list[str]) -> None:
        ran.append(command)
        Path(command[-1], "lib", "python3.11", "site-packages").mkdir(parents=True)
        Path(command[-1], "pyvenv.cfg").write_text("version = 3.11.7\n")

    monkeypatch.setattr(venvs, "run", run)
    monkeypatch.setattr(venvs, "install_packages", lambda _, arguments: ran.append(list(arguments)))
    return ran


def test_what_is_asked_for_is_installed_listed_and_removed(home: Path, ran: list[list[str]]) -> None:
    done = rollyard("install", "games", "chess-env", "--recipe", "gymnasium", "--with", "go-env", "--python", "python3")
    assert 'environments = [{..., python = "games"}]' in done.stdout
    assert done.stdout.splitlines()[-1] == f"Its interpreter: {home / 'envs' / 'games' / 'bin' / 'python'}"
    assert ran[0] == ["python3", "-m", "venv", str(home / "envs" / "games")]
    assert [ran[1][-4].split("==")[0], *ran[1][-3:-1]] == ["gymnasium", "chess-env", "go-env"]
    [row] = json.loads(rollyard("list", "--json").stdout)
    assert (row["name"], row["complete"], row["python"]) == ("games", True, "3.11.7")
    assert (row["recipes"], row["packages"]) == (["gymnasium"], ["chess-env", "go-env"])
    assert "games                Python 3.11.7" in rollyard("list").stdout
    assert rollyard("remove", "games").stdout == "games is removed\n"
    assert rollyard("list", "--json").stdout == "[]\n"


def test_a_recipe_that_lists_everything_is_installed_as_it_is(ran: list[list[str]]) -> None:
    made = json.loads(rollyard("install", "atropos", "--with", "my-env", "--json").stdout)
    assert Path(made["python"]).parts[-3:] == ("atropos", "bin", "python")
    assert ran[1][-3:-1] == ["--no-deps", "-r"]
    assert "atroposlib==" in Path(ran[1][-1]).read_text()
    assert ran[2][-2] == "my-env"


def test_a_package_of_this_machine_is_made_anew_once_it_has_changed_and_is_the_same_from_anywhere(
    ran: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("here", "there"):
        (tmp_path / name / "game" / "build").mkdir(parents=True)
        (tmp_path / name / "game" / "rules.py").write_text("REWARD = 1")
    monkeypatch.chdir(tmp_path / "here")
    assert "mine is installed." in rollyard("install", "mine", "./game[extra]").stdout
    assert f"{tmp_path}/here/game[extra]" in ran[1]
    (tmp_path / "here" / "game" / "build" / "rules.py").write_text("what building left")
    done = len(ran)
    assert "nothing had to be done" in rollyard("install", "mine", "./game[extra]").stdout
    assert len(ran) == done
    (tmp_path / "here" / "game" / "rules.py").write_text("REWARD = 2")
    assert "mine is installed." in rollyard("install", "mine", "./game[extra]").stdout
    assert len(ran) == 2 * done
    monkeypatch.chdir(tmp_path / "there")
    assert "mine is there already, with other packages" in rollyard("install", "mine", "./game[extra]", status=1).stderr
    monkeypatch.chdir(tmp_path)
    assert "nothing had to be done" in rollyard("install", "mine", "here/game[extra]").stdout
