"""The pages of models: facts, origin, what started from one; who sees them and who takes a name away."""

from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse

from rollouts.models import Checkpoint, Model, Run
from rollouts.states import RunState
from tests.factories import make_project, make_run
from tests.model_files import make_model, write_model

LIST = reverse("models")
PAGE = reverse("model", args=["words", "warm"])
REMOVE = reverse("model-remove", args=["words", "warm"])


@pytest.fixture(autouse=True)
def model(_database: None, tmp_path: Path) -> Model:
    """The result of a run."""
    source = make_run(state=RunState.FINISHED, next_step=80, name="source")
    directory = write_model(tmp_path / "warm")
    facts = {"architecture": "Qwen3<b>", "parameters": 886_528, "vocabulary": 259, "has_chat_template": True}
    return make_model(make_project(), "warm", directory, run=source, **facts)


def test_the_list_shows_each_model_and_the_run_it_came_from(client: Client, model: Model, tmp_path: Path) -> None:
    make_model(make_project(), "mine", tmp_path / "mine")
    page = client.get(LIST).content.decode()
    assert model.run is not None
    assert f'<a class="mono" href="{reverse("run", args=[model.run.key])}">{model.run.key}@80</a>' in page
    assert f'href="{reverse("model", args=["words", "mine"])}"' in page
    assert "886,528" in page
    assert "Qwen3&lt;b&gt;" in page


def test_a_model_is_launched_from_and_forked_from_its_page(client: Client, model: Model) -> None:
    assert model.run is not None
    page = client.get(PAGE).content.decode()
    assert f'href="{reverse("launch")}?model=warm&amp;project=words"' in page
    assert "Fork" not in page
    Checkpoint.objects.create(run=model.run, step=80, path="/c", manifest_sha256="a" * 64, size_bytes=1, epoch=1)
    assert f'href="{reverse("launch")}?model={model.run.key}@80&amp;project=words"' in client.get(PAGE).content.decode()


def test_runs_that_started_from_a_model_are_listed_and_name_it(client: Client, model: Model) -> None:
    run = make_run(name="descendant")
    Run.objects.filter(pk=run.pk).update(model=model)
    assert reverse("run", args=[run.key]) in client.get(PAGE).content.decode()
    assert f'from <a href="{PAGE}">warm</a>' in client.get(reverse("run", args=[run.key])).content.decode()
    found = client.get(reverse("runs"), {"q": "warm"}).content.decode()
    assert reverse("run", args=[run.key]) in found


def test_an_operator_takes_a_name_away(client: Client) -> None:
    response = client.post(REMOVE, follow=True)
    assert "warm is no name of a model any more" in response.content.decode()
    assert not Model.objects.exists()


def test_a_model_in_use_keeps_its_name(client: Client, model: Model) -> None:
    run = make_run()
    Run.objects.filter(pk=run.pk).update(model=model)
    assert f"Run {run.key} started from warm" in client.post(REMOVE, follow=True).content.decode()
    assert Model.objects.exists()


def test_a_viewer_looks_and_changes_nothing(viewer_client: Client) -> None:
    page = viewer_client.get(PAGE).content.decode()
    assert "Take the name away" not in page
    assert "Launch from it" not in page
    assert viewer_client.post(REMOVE).status_code == 403
    assert Model.objects.exists()


def test_to_a_stranger_the_model_does_not_exist(stranger_client: Client) -> None:
    assert "warm" not in stranger_client.get(LIST).content.decode()
    assert stranger_client.get(PAGE).status_code == 404
    assert stranger_client.post(REMOVE).status_code == 404


def test_looking_takes_no_name_away(client: Client) -> None:
    assert client.get(REMOVE).status_code == 405


def test_signing_in_comes_first() -> None:
    assert Client().get(LIST).status_code == 302
    assert Client().get(PAGE).status_code == 302


def test_a_project_without_models_says_how_to_get_one(client: Client, model: Model) -> None:
    model.delete()
    assert "Make the first one" in client.get(LIST).content.decode()
