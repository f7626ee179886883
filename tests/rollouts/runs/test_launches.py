"""What `model.path` may name, and what of it is refused before anything is stored."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from rollouts.errors import Invalid, ModelMissing, Unavailable, Untrusted
from rollouts.models import Run
from rollouts.services import endpoints, model_checks, models, trust
from rollouts.services.runs import checkpoints, launches, life
from rollouts.states import RunState
from tests import http_server, store
from tests.factories import make_project, make_run
from tests.model_files import make_model, whole_model, write_model
from tests.rollouts import story
from tests.rollouts.runs.test_models import FAULTS, spoil
from trainers.config import resolve
from trainers.wire import CheckpointIn
from workers.fleet import commands
from workers.fleet import hub as hub_names

pytestmark = [pytest.mark.django_db, pytest.mark.slow]  # most start a process that looks at a model


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache of the hub that is empty, and no way to it."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def launch(path: str, **overrides: Any) -> Run:
    values = {"model.path": path} | {key.replace("__", "."): value for key, value in overrides.items()}
    run = launches.launch(
        project=make_project(),
        user=None,
        resolved=resolve("reverse-text-rl", overrides=values),
        actor="user:ada",
        forkable=Run.objects.filter(project=make_project()),
    )
    return story.fresh(run)


def refused(path: str, **overrides: Any) -> str:
    with pytest.raises(Invalid) as refusal:
        launch(path, **overrides)
    assert list(refusal.value.fields) == ["model.path"]
    assert not Run.objects.filter(state=RunState.PENDING).exists()
    return refusal.value.fields["model.path"]


def test_a_name_stands_for_its_directory_and_the_run_remembers_the_name(tmp_path: Path) -> None:
    model = make_model(make_project(), "mine", tmp_path / "mine")
    run = launch("mine")
    assert (run.model, run.parsed.model.path) == (model, str(tmp_path / "mine"))
    assert str(run.origins["model.path"]) == "model mine (command line)"


def test_a_directory_that_has_a_name_is_linked_to_it(tmp_path: Path) -> None:
    model = make_model(make_project(), "mine", tmp_path / "mine")
    assert launch(str(tmp_path / "mine")).model == model
    assert launch(str(write_model(tmp_path / "nameless"))).model is None


def test_a_name_of_another_project_means_nothing(tmp_path: Path) -> None:
    make_model(make_project("others"), "theirs", tmp_path / "theirs")
    assert "has no model theirs" in refused("theirs")


def test_a_misspelt_name_is_guessed(tmp_path: Path) -> None:
    make_model(make_project(), "reversed", tmp_path / "mine")
    assert "did you mean reversed?" in refused("reversd")


def test_a_model_that_a_preset_makes_is_missing_and_not_wrong() -> None:
    with pytest.raises(ModelMissing) as missing:
        launch("reverse-text-warm")
    assert "model.path" in missing.value.fields


def test_nobody_is_asked_to_make_a_model_for_code_that_is_not_allowed() -> None:
    elsewhere = {"name": "gymnasium", "python": "games", "args": {"id": "Taxi-v3"}}
    with pytest.raises(Untrusted):
        launch("reverse-text-warm", environments=[elsewhere])


def test_the_model_of_the_warm_up_is_made_when_its_run_begins() -> None:
    run = launch("tiny-qwen3")
    assert (run.model, run.parsed.model.path) == (None, str(models.built_in_directory("tiny-qwen3")))


def checkpointed(project: str = "words") -> Run:
    run, epoch = story.train()
    with store.beyond_rights():
        Run.objects.filter(pk=run.pk).update(project=make_project(project))
    path = str(run.directory / "checkpoints" / "step_2")
    checkpoints.add_checkpoint(
        run, epoch=epoch, checkpoint=CheckpointIn(step=2, path=path, manifest_sha256="b" * 64, size_bytes=5)
    )
    return run


def test_run_and_step_are_a_fork() -> None:
    source = checkpointed()
    run = launch(f"{source.key}@2")
    assert run.forked_from is not None
    assert (run.forked_from.run, run.forked_from.step) == (source, 2)
    assert Path(run.parsed.model.path) == run.directory / "weights" / "step_0"
    assert str(run.origins["model.path"]) == f"fork of {source.key}@2"


def test_a_fork_needs_a_run_that_may_be_forked_and_a_step_with_a_checkpoint() -> None:
    assert "no checkpoint of step 7. Steps with one: 2" in refused(f"{checkpointed().key}@7")
    assert "There is no run" in refused(f"{checkpointed('others').key}@2")
    assert "neither RUN nor RUN@STEP" in refused(f"{checkpointed().key}@last")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_directory_that_would_not_load_is_refused(tmp_path: Path, fault: str) -> None:
    directory = write_model(tmp_path / "m")
    spoil(directory, fault)
    assert fault in refused(str(directory))


def test_a_path_that_is_not_there_or_relative_or_empty_is_refused(tmp_path: Path) -> None:
    assert "does not exist" in refused(str(tmp_path / "nowhere"))
    assert "absolute path" in refused("./here")
    assert "no config.json" in refused(str(tmp_path))


def test_what_only_the_loading_code_can_tell_is_refused_too(tmp_path: Path) -> None:
    unknown = write_model(tmp_path / "unknown", model_type="no-such-type")
    assert "no-such-type" in refused(str(unknown))
    encoder = write_model(tmp_path / "encoder", model_type="t5", architectures=["T5Model"])
    assert "no causal language model" in refused(str(encoder))
    broken = write_model(tmp_path / "broken")
    (broken / "tokenizer.json").write_text('{"model": 1}')
    assert "has a tokenizer that does not load" in refused(str(broken))


def test_a_model_with_layers_that_are_not_trained_is_refused_to_trainers_alone(tmp_path: Path) -> None:
    hybrid = write_model(tmp_path / "hybrid", layer_types=["linear_attention"])
    assert f"{hybrid} cannot be trained: it has layers of the kind linear_attention" in refused(str(hybrid))
    assert make_model(make_project(), "hybrid", hybrid).source == str(hybrid)
    policies = [{"name": "other", "model": "hybrid"}]
    assert launch(str(whole_model()), policies=policies).parsed.policies[0].model == str(hybrid)


def test_a_model_that_was_mended_is_looked_at_again(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m", model_type="no-such-type")
    refused(str(directory))
    write_model(directory)
    assert launch(str(directory)).parsed.model.path == str(directory)


def test_a_model_that_does_not_load_is_asked_about_once_while_its_files_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, ask = [], model_checks.confined
    monkeypatch.setattr(model_checks, "confined", lambda argv, *how: asked.append(argv) or ask(argv, *how))
    broken = write_model(tmp_path / "unknown", model_type="no-such-type")
    assert refused(str(broken)) == refused(str(broken))
    assert len(asked) == 1


def test_only_so_many_models_are_checked_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_checks, "PATIENCE_S", 0.0)
    with ExitStack() as others:
        for _ in range(model_checks.AT_ONCE):
            others.enter_context(model_checks.places)
        with pytest.raises(Unavailable):
            launch(str(write_model(tmp_path / "new")))
    assert launch(str(write_model(tmp_path / "new"))).state == RunState.PENDING


def test_a_model_that_is_taken_away_while_a_run_is_launched_is_a_fault_of_its_field(tmp_path: Path) -> None:
    model = make_model(make_project(), "mine", tmp_path / "mine")
    start = launches.find_start(
        make_project(), resolve("reverse-text-rl", overrides={"model.path": "mine"}), forkable=Run.objects.none()
    )
    models.remove(model)
    with pytest.raises(Invalid) as refusal:
        life.create(project=make_project(), user=None, resolved=start.resolved, actor="user:ada", model=start.model)
    assert "taken away" in refusal.value.fields["model.path"]
    assert not Run.objects.exists()


def test_code_that_a_model_brings_along_is_not_run_at_its_launch(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m", model_type="theirs", auto_map={"AutoConfig": "theirs.Config"})
    (directory / "theirs.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    refused(str(directory))
    trust.allow("remote_code", str(directory), actor="user:root")
    launch(str(directory), model__trust_remote_code=True)
    assert not (tmp_path / "ran").exists()


def launch_beside(named: str, **overrides: Any) -> Run:
    """Launch from a model that loads, beside which this one is served."""
    make_model(make_project(), "own", whole_model())
    return launch("own", policies=[{"name": "judge", "endpoint": "j"}, {"name": "rival", "model": named}], **overrides)


@pytest.fixture
def judge() -> None:
    endpoints.add(name="j", base_url="https://a.example/v1", model="m", is_for_all=True, actor="user:root")


@pytest.mark.usefixtures("judge")
def test_a_model_beside_the_policy_is_found_as_the_one_it_starts_from(tmp_path: Path) -> None:
    make_model(make_project(), "mine", tmp_path / "mine")
    run = launch_beside("mine")
    assert [policy.model for policy in run.parsed.policies] == ["", str(tmp_path / "mine")]
    assert str(run.origins["policies.1.model"]) == "model mine (command line)"
    assert hub_names.names_of(run.parsed) == []


@pytest.mark.usefixtures("judge")
@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("theirs", "has no model theirs"),
        ("reversed", "has no model reversed: did you mean reverse-text?"),
        ("./here", "write the absolute path"),
        ("/nowhere/at/all", "does not exist"),
        ("/etc", "belongs to the system"),
        ("somebody/something", "not in the hub's cache"),
        ("rn-7@3", "is a checkpoint, and here a model is named: `rollyard checkpoints export`"),
        ("reverse-text-warm", "there is no model reverse-text-warm here yet: `rollyard launch"),
        ("x" * 1_001, "more than 1000 characters"),
        ("a\0b", "NUL"),
    ],
)
def test_a_model_beside_the_policy_is_refused_at_its_key_with_the_same_words(named: str, told: str) -> None:
    for project, name in ((make_project("others"), "theirs"), (make_project(), "reverse-text")):
        make_model(project, name, Path(settings.ROLLYARD_HOME) / name)  # looked at once for all of these
    with pytest.raises(Invalid) as refusal:
        launch_beside(named)
    assert list(refusal.value.fields) == ["policies.1.model"]
    assert told in refusal.value.fields["policies.1.model"]
    assert not Run.objects.exists()


@pytest.mark.usefixtures("judge")
def test_what_the_run_starts_from_is_itself_beside_the_policy_whatever_is_registered(tmp_path: Path) -> None:
    make_model(make_project(), "start", tmp_path / "mine")
    run = launch_beside("start")
    assert run.parsed.frozen["policies.1"].is_start
    assert commands.start_weights(run.parsed, "rival") == run.parsed.model.path


@pytest.mark.usefixtures("judge")
def test_code_of_a_model_beside_the_policy_has_to_be_allowed_too(tmp_path: Path) -> None:
    own, other = (str(write_model(tmp_path / name)) for name in ("warm", "other"))
    policies = [{"name": "rival", "model": other}, {"name": "first", "model": "start"}]
    trust.allow("remote_code", own, actor="user:root")
    with pytest.raises(Untrusted) as refusal:
        launch(own, policies=policies, model__trust_remote_code=True)
    assert list(refusal.value.fields) == ["policies.0.model"]
    trust.allow("remote_code", other, actor="user:root")
    run = launch(own, policies=policies, model__trust_remote_code=True)
    trust.withdraw("remote_code", other, actor="user:root")
    assert [need.name for need in trust.missing_of(run)] == [other]


def test_a_built_in_model_beside_the_policy_is_made_when_the_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    make_model(make_project(), "own", whole_model())
    run = launch("own", policies=[{"name": "rival", "model": "tiny-qwen3"}])
    made: list[str] = []
    monkeypatch.setattr(models, "make_tiny", lambda **given: made.append(given["name"]))
    models.make_built_in(run)
    assert made == ["tiny-qwen3"]
    run.refresh_from_db()
    assert run.model is not None
    assert run.model.name == "own"


def test_a_hub_name_that_is_not_cached_is_refused_without_a_network() -> None:
    assert "is not in the hub's cache on this machine" in refused("someone/some-model")


def test_a_cached_hub_model_is_launched_by_its_name(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--someone--some-model"
    write_model(repository / "snapshots" / "abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    assert launch("someone/some-model").parsed.model.path == "someone/some-model"
    (repository / "snapshots" / "abc" / "tokenizer.json").unlink()
    assert "no tokenizer" in refused_again("someone/some-model")


def refused_again(path: str) -> str:
    with store.beyond_rights():
        Run.objects.all().delete()
    return refused(path)


class Hub(http_server.Handler):
    """The one route of the hub that a check asks: which files a model has."""

    files: dict[str, list[str]] = {
        "/api/models/someone/whole": ["config.json", "model.safetensors", "tokenizer.json"],
        "/api/models/someone/mute": ["config.json", "model.safetensors"],
    }

    def do_GET(self) -> None:
        names = self.files.get(self.path.partition("?")[0])
        body = json.dumps({"id": "someone/x", "siblings": [{"rfilename": name} for name in names or []]}).encode()
        error = {} if names else {"X-Error-Code": "RepoNotFound"}
        self.answer(200 if names else 404, body, {"Content-Type": "application/json", **error})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with http_server.serving(Hub) as url:
        monkeypatch.delenv("HF_HUB_OFFLINE")
        monkeypatch.setenv("HF_ENDPOINT", url)
        monkeypatch.setenv("NO_PROXY", os.environ.get("NO_PROXY", "") + ",127.0.0.1")
        yield


def test_the_hub_is_asked_for_what_is_not_cached(hub: None) -> None:
    assert launch("someone/whole").parsed.model.path == "someone/whole"
    with store.beyond_rights():
        Run.objects.all().delete()
    assert "no tokenizer" in refused("someone/mute")
    assert "the hub has no model someone/nothing" in refused("someone/nothing")


def test_an_external_run_needs_no_model() -> None:
    resolved = resolve("external-trainer")
    run = launches.launch(
        project=make_project(), user=None, resolved=resolved, actor="user:ada", forkable=Run.objects.none()
    )
    assert run.parsed.model.path == ""


def test_the_run_that_makes_a_model_is_found_by_project() -> None:
    from rollouts.selectors.models import find_maker

    make_run(preset="reverse-text-sft", state=RunState.FAILED)
    run = make_run(preset="reverse-text-sft")
    assert find_maker(make_project(), "reverse-text-warm") == run
    assert find_maker(make_project("others"), "reverse-text-warm") is None
