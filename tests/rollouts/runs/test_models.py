"""Models under names: what is refused, what a name means, and what a run that makes one leaves."""

import json
from pathlib import Path
from typing import Any

import pytest

from rollouts.errors import Conflict, Invalid, StateConflict
from rollouts.models import Event, Model, ModelOrigin, PolicyVersion, Run
from rollouts.services import models
from rollouts.states import RunState
from tests.factories import make_project, make_run
from tests.model_files import TOKENIZER, make_model, write_model
from trainers.storage.model_files import ModelFault, hash_files, read_facts

pytestmark = pytest.mark.django_db


def making_run(name: str = "warm", **columns: Any) -> Run:
    """A run that asks for its result to be registered, and has left weights."""
    run = make_run(preset="reverse-text-sft", overrides={"register_as": name}, state=RunState.FINISHING, **columns)
    weights = write_model(run.directory / "weights" / "step_3")
    PolicyVersion.objects.create(run=run, version=3, path=str(weights))
    return run


@pytest.mark.slow
def test_an_added_model_is_described_by_its_files(tmp_path: Path) -> None:
    model = make_model(make_project(), "mine", write_model(tmp_path / "mine"))
    facts = (model.architecture, model.parameters, model.tokenizer, model.vocabulary, model.has_chat_template)
    assert facts == ("Qwen3ForCausalLM", 40, "PreTrainedTokenizerFast", 4, True)
    assert (model.origin, model.run, model.source) == (ModelOrigin.ADDED, None, str(tmp_path / "mine"))
    assert model.sha256 == hash_files(tmp_path / "mine")


def test_the_hash_is_of_the_content_and_not_of_the_place(tmp_path: Path) -> None:
    one, same, other = (write_model(tmp_path / name) for name in ("one", "same", "other"))
    (same / "README.md").write_text("nobody loads this")
    (other / "tokenizer.json").write_text(json.dumps(TOKENIZER | {"truncation": None}))
    assert hash_files(one) == hash_files(same) != hash_files(other)


def spoil(directory: Path, how: str) -> None:
    weights = directory / "model.safetensors"
    match how:
        case "no config.json":
            (directory / "config.json").unlink()
        case "no weights":
            weights.unlink()
        case "file not fully covered":
            weights.write_bytes(weights.read_bytes()[:-1])
        case "header too large":
            weights.write_bytes(b"\xff" * 100)
        case "no tokenizer":
            (directory / "tokenizer.json").unlink()
        case "lacks 1 of 2 weight files":
            shards = {"a": weights.name, "b": "model-2.safetensors"}
            (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
        case "no model_type":
            (directory / "config.json").write_text("{}")
        case "no JSON object":
            (directory / "config.json").write_text("[]")


FAULTS = [
    *("no config.json", "no weights", "file not fully covered", "header too large", "no tokenizer"),
    *("lacks 1 of 2 weight files", "no model_type", "no JSON object"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_files_that_would_not_load_are_named(tmp_path: Path, fault: str) -> None:
    directory = write_model(tmp_path / "m")
    spoil(directory, fault)
    with pytest.raises(ModelFault, match=fault):
        read_facts(directory)


def test_a_model_that_would_not_load_is_not_registered(tmp_path: Path) -> None:
    with pytest.raises(Invalid) as refused:
        models.add(project=make_project(), name="mine", source=str(tmp_path / "nowhere"), user=None)
    assert "does not exist" in refused.value.fields["source"]
    assert not Model.objects.exists()


@pytest.mark.slow
def test_a_name_is_unique_in_its_project(tmp_path: Path) -> None:
    make_model(make_project(), "mine", tmp_path / "one")
    with pytest.raises(Conflict):
        make_model(make_project(), "mine", tmp_path / "two")
    make_model(make_project("others"), "mine", tmp_path / "two")


@pytest.mark.parametrize("name", ["", "Mine", "a/b", "a@1", "-a", "a b", "a" * 65])
def test_a_name_that_would_read_as_something_else_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Invalid):
        make_model(make_project(), name, tmp_path / "one")


def test_the_result_of_a_run_is_registered_with_where_it_came_from() -> None:
    run = making_run()
    model = models.register_result(run)
    assert model is not None
    assert (model.name, model.project, model.origin, model.run, model.step) == ("warm", run.project, "trained", run, 3)
    assert str(Event.objects.get(run=run).reason) == "registered as the model warm"


def test_a_result_that_became_a_link_is_not_registered() -> None:
    run = making_run()
    version = PolicyVersion.objects.get(run=run, version__gt=0)
    Path(version.path).rename(run.directory / "elsewhere")
    Path(version.path).symlink_to(run.directory / "elsewhere")
    with pytest.raises(Invalid) as refusal:
        models.register_result(run)
    assert "is a link" in refusal.value.fields["source"]


def test_registering_a_result_again_changes_nothing() -> None:
    run = making_run()
    assert models.register_result(run) == models.register_result(run)
    assert Model.objects.count() == 1


def test_a_result_takes_no_name_over() -> None:
    first = models.register_result(making_run())
    second_run = making_run()
    second = models.register_result(second_run)
    assert first is not None
    assert second is not None
    assert (first.name, second.name) == ("warm", f"warm-{second_run.key}")


def test_a_run_that_asks_for_no_name_registers_nothing() -> None:
    assert models.register_result(making_run("")) is None


@pytest.mark.slow
def test_a_name_is_taken_away_and_the_files_stay(tmp_path: Path) -> None:
    model = make_model(make_project(), "mine", tmp_path / "mine")
    run = make_run(state=RunState.FINISHED)
    Run.objects.filter(pk=run.pk).update(model=model)
    models.remove(model)
    assert (tmp_path / "mine" / "config.json").exists()
    run.refresh_from_db()
    assert run.model is None


@pytest.mark.slow
def test_a_model_that_a_running_run_started_from_keeps_its_name(tmp_path: Path) -> None:
    model = make_model(make_project(), "mine", tmp_path / "mine")
    run = make_run()
    Run.objects.filter(pk=run.pk).update(model=model)
    with pytest.raises(StateConflict, match=run.key):
        models.remove(model)


@pytest.mark.slow
def test_a_tiny_model_is_made_once_per_home_and_named_per_project(settings: Any, tmp_path: Path) -> None:
    settings.ROLLYARD_MODELS_DIR = tmp_path / "models"
    overrides = {"model.path": str(models.built_in_directory("tiny-qwen3"))}
    one = make_run(state=RunState.PENDING, preset="reverse-text-sft", overrides=overrides)
    two = make_run(
        state=RunState.PENDING, preset="reverse-text-sft", overrides=overrides, project=make_project("others")
    )
    for run in (one, one, two):
        models.make_built_in(run)
        run.refresh_from_db()
    assert [model.name for model in Model.objects.all()] == ["tiny-qwen3", "tiny-qwen3"]
    assert one.model is not None
    assert two.model is not None
    assert (one.model.origin, one.model.sha256) == ("made", two.model.sha256)
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["tiny-qwen3"]
    with pytest.raises(Conflict, match="has a model tiny-qwen3 already"):
        models.make_tiny(project=one.project, name="tiny-qwen3", seed=1)
