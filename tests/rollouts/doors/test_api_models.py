"""The list of models over the API."""

from pathlib import Path

import pytest

from rollouts.models import Run, Scope
from rollouts.states import RunState
from tests.factories import make_project, make_run
from tests.model_files import make_model
from tests.rollouts.api import Api, make_token, problem

pytestmark = pytest.mark.django_db


@pytest.mark.slow
def test_models_are_listed_with_their_facts_and_origin(tmp_path: Path) -> None:
    added = make_model(make_project(), "mine", tmp_path / "mine")
    trained = make_model(make_project(), "warm", tmp_path / "warm", run=make_run(state=RunState.FINISHED, next_step=80))
    assert trained.run is not None
    first, second = Api(make_token([Scope.READ])).get("models").json()["models"]
    assert (first["model"], first["origin"], first["trained_by"]) == ("warm", "trained", f"{trained.run.key}@80")
    assert (second["model"], second["origin"], second["trained_by"]) == ("mine", "added", None)
    assert (second["parameters"], second["vocabulary"], second["sha256"]) == (40, 4, added.sha256)


@pytest.mark.slow
def test_a_token_sees_the_models_of_its_project_and_of_its_run(tmp_path: Path) -> None:
    mine = make_model(make_project(), "mine", tmp_path / "mine")
    make_model(make_project("theirs"), "theirs", tmp_path / "theirs")
    run = make_run()
    assert [each["model"] for each in Api(make_token()).get("models").json()["models"]] == ["mine"]
    assert Api(make_token(run=run)).get("models").json()["models"] == []
    Run.objects.filter(pk=run.pk).update(model=mine)
    assert [each["model"] for each in Api(make_token(run=run)).get("models").json()["models"]] == ["mine"]
    problem(Api(make_token([Scope.LAUNCH])).get("models"), 403, "forbidden")
