"""Lessons where they begin: what was left by one that ended early, and what makes no sense."""

import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from controlplane.cli import demo, lessons, main
from rollouts.models import Model
from tests.model_files import write_model


@pytest.mark.django_db
def test_a_model_that_was_made_and_has_no_name_is_taken(tmp_path: Path, settings: Any) -> None:
    settings.ROLLYARD_MODELS_DIR = tmp_path
    left = write_model(tmp_path / "tiny-seed-1")
    assert [lessons.make_tiny(1), lessons.make_tiny(1)] == ["tiny-seed-1"] * 2
    assert [model.source for model in Model.objects.all()] == [str(left)]


@pytest.mark.parametrize("key", ["optimzer.lr", "sft.optimzer.lr"])
def test_a_demo_of_what_makes_no_sense_ends_before_anything_is_started(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROLLYARD_HOME", str(tmp_path))
    monkeypatch.setattr(lessons, "host", lambda *_, **__: pytest.fail("something was started"))
    monkeypatch.setattr(sys, "argv", ["demo", "--set", f"{key}=1e-4"])
    assert demo.main() == 1
    assert "Did you mean optimizer?" in capsys.readouterr().out


@pytest.mark.parametrize("port", ["80000", "abc"])
def test_a_port_that_is_none_is_refused_in_a_sentence(
    port: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROLLYARD_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["demo", "--port", port])
    with pytest.raises(SystemExit, match="2"):
        demo.main()
    assert "give a number up to 65535, or auto" in capsys.readouterr().err
    refused = CliRunner().invoke(main.app, ["up", "--port", port])
    assert (refused.exit_code, "a number up to 65535, or auto" in refused.stderr) == (2, True)
