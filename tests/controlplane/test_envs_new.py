"""`rollyard envs new`: the package it writes works as it is, and is somebody else's code."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from controlplane.cli.main import app
from rollouts.errors import Untrusted
from rollouts.services import trust
from tests.controlplane.command_line import ROOT
from trainers.config import resolve

WANTED = "my_word_sort"


def new(*words: str, status: int = 0) -> Result:
    done = CliRunner().invoke(app, ["envs", "new", *words])
    assert done.exit_code == status, done.output + done.stderr
    return done


def test_the_next_steps_are_told_and_nothing_is_written_twice(tmp_path: Path) -> None:
    told = new(WANTED, "--into", str(tmp_path)).stdout
    assert f"pip install -e {tmp_path / WANTED}" in told
    assert f"environments check {WANTED}" in told
    (tmp_path / WANTED / "README.md").write_text("mine")
    refused = new(WANTED, "--into", str(tmp_path), status=1).stderr
    assert refused.startswith(f"error: {tmp_path / WANTED} is there already: ")
    assert refused.count("\n") == 1
    assert (tmp_path / WANTED / "README.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../x", "names no package"),
        ("My", "names no package"),
        ("x", "names no package"),
        ("class", "names no package"),
        ("wordle", "an environment is called wordle already"),
        ("numpy", "a package that is installed here is called numpy"),
        ("json", "a package that is installed here is called json"),
    ],
)
def test_a_name_that_would_not_work_is_one_sentence(tmp_path: Path, name: str, words: str) -> None:
    refused = new(name, "--into", str(tmp_path), status=1).stderr
    assert words in refused
    assert refused.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


class Python:
    """An interpreter of its own that has what Rollyard's has, so that what is installed there is not installed here."""

    def __init__(self, directory: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
        [packages] = directory.glob("lib/python3*/site-packages")
        (packages / "ours.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
        self._program = str(directory / "bin" / "python")

    def __call__(self, *words: str, **asked: Any) -> str:
        """What `python -m ...` says."""
        environ = {**os.environ, "PYTHONPATH": ""} | asked.pop("environ", {})
        done = subprocess.run(
            [self._program, "-m", *words],
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **asked,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.mark.slow  # makes a virtual environment, and installs into it
def test_what_is_written_installs_passes_the_kit_and_its_own_tests(tmp_path: Path) -> None:
    new(WANTED, "--into", str(tmp_path))
    package = tmp_path / WANTED
    assert not [path for path in package.rglob("*") if path.is_file() and "my_environment" in path.read_text().lower()]
    python = Python(tmp_path / "python")
    python("pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-e", str(package))
    report = python("environments", "check", WANTED, cwd=tmp_path)
    assert report.startswith(WANTED)
    assert "holds  Solving pays: the solving player earns 1.000, the random one 0.000." in report
    assert "FAILS" not in report
    assert "2 passed" in python("pytest", "-q", "-p", "no:cacheprovider", "-c", "pyproject.toml", cwd=package)
    listed = python("controlplane.cli.main", "envs", "list", environ={"ROLLYARD_HOME": str(tmp_path / "home")})
    assert f"Installed beside Rollyard, and played without `python`: {WANTED}" in listed


@pytest.mark.django_db
def test_it_is_launched_only_once_somebody_allowed_it() -> None:
    config = resolve("reverse-text-rl", overrides={"environments": [{"name": WANTED, "python": "theirs"}]}).config
    with pytest.raises(Untrusted) as refused:
        trust.check(config)
    assert f"rollyard trust allow environment {WANTED}" in refused.value.fields["environments.0.name"]
    trust.allow("environment", WANTED, actor="an administrator")
    trust.check(config)
