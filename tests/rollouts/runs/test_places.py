"""Which files a run may be given: naming one is reading it."""

from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from rollouts.errors import Invalid
from rollouts.models import Run
from rollouts.services.runs import places
from tests.factories import make_project, make_run
from tests.model_files import make_model
from trainers.config import resolve

pytestmark = pytest.mark.django_db


def faults(path: Path, key: str = "model.path", **options: Any) -> dict[str, str]:
    """What is said of a config that names this path."""
    preset = "reverse-text-sft" if key.startswith("data") else "reverse-text-rl"
    rank = {"model.lora.rank": 8} if "lora" in key else {}
    config = resolve(preset, overrides={key: str(path), **rank}).config
    given = {"project": make_project(), "readable": Run.objects.filter(project=make_project()), **options}
    try:
        places.check(config, **given)
    except Invalid as refusal:
        return refusal.fields
    return {}


@pytest.mark.parametrize("key", ["model.path", "model.lora.path", "data.path"])
def test_the_installations_own_files_are_refused_at_the_key(key: str) -> None:
    home = settings.HOME.path
    for path in (home, home / "secret_key", home / "postgres", home.parent, Path("/"), home / "models" / ".." / "logs"):
        assert list(faults(path, key)) == [key], path


def test_a_link_to_them_is_no_way_around(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(settings.HOME.path / "secret_key")
    assert "belongs to the installation" in faults(tmp_path / "link")["model.path"]


def test_files_of_ones_own_runs_may_be_read_and_those_of_others_not() -> None:
    own, foreign = make_run(), make_run(project=make_project("foreign"))
    assert faults(own.directory / "weights" / "step_3") == {}
    assert "not yours" in faults(foreign.directory / "weights" / "step_3")["model.path"]


def test_what_is_registered_in_the_project_or_lies_elsewhere_may_be_read(tmp_path: Path) -> None:
    model = make_model(make_project(), "mine", settings.HOME.path / "somewhere" / "mine")
    assert faults(Path(model.source)) == {}
    assert list(faults(Path(model.source), project=make_project("foreign"))) == ["model.path"]
    assert faults(tmp_path / "models" / "mine") == {}
    assert faults(settings.HOME.path / "models" / "mine") == {}
