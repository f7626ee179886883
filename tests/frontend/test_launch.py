"""The launch form: generated from the config's schema, checked by the config's own rules, errors at the field."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from frontend.pages.launch.draft import as_posted, blank
from frontend.pages.launch.form import read, show
from frontend.pages.launch.sources import from_preset, from_run, with_version
from frontend.pages.launch.summary import summarise
from rollouts.errors import Conflict
from rollouts.models import Model, PolicyVersion, Role, Run
from rollouts.services.runs import checkpoints, evaluating, life, policies
from rollouts.states import RunState
from tests import store
from tests.factories import make_project, make_run, make_user
from tests.frontend.conftest import signed_in
from tests.model_files import make_model, make_warm, whole_model
from tests.rollouts import story
from tests.rollouts.datasets.test_making import make, played
from trainers.config import resolve
from trainers.origins import COMMAND_LINE, OriginKind
from trainers.wire import CheckpointIn


@pytest.fixture(autouse=True)
def warm(_database: None) -> Model:
    """The model of the preset that most tests launch."""
    return make_warm()


PRESET = f"{reverse('launch')}?preset=reverse-text-rl"


def filled(preset: str = "reverse-text-rl", **changes: str) -> dict[str, str]:
    """What a browser would post: every field of the form, with some changed."""
    request = blank(from_preset(preset))
    posted = {item.key: item.value for item in request.fields.values() if item.widget != "checkbox" or item.value}
    posted |= {f"{section.key}.on": "on" for section in request.sections if section.is_optional and section.is_on}
    return {key: value for key, value in (posted | changes).items() if value != "(absent)"}


def post(client: Client, path: str = PRESET, **changes: str) -> Any:
    return client.post(path, filled(**changes))


def test_the_gallery_offers_every_preset(client: Client) -> None:
    page = client.get(reverse("launch")).content.decode()
    assert "reverse-text-rl" in page
    assert "reverse-text-sft" in page
    assert "external-trainer" in page


def test_the_gallerys_shell_line_launches_a_run_that_trains(client: Client) -> None:
    page = client.get(reverse("launch")).content.decode()
    line = re.search(r"<code>rollyard launch (\S+) (\S+)</code>", page)
    assert line is not None
    assert resolve(line[1], overrides=[line[2]]).config.kind == "rl"


def test_words_of_a_shell_are_read_as_what_they_say() -> None:
    source = from_preset("reverse-text-sft")
    chosen = {"name": "2026-11-12", "register_as": "good-1", "model": {"path": "/my models/1"}, "max_steps": 5}
    words = replace(source, chosen=chosen).words
    assert words == ["'name=\"2026-11-12\"'", "register_as=good-1", "'model.path=/my models/1'", "max_steps=5"]
    read = resolve("reverse-text-sft", overrides=shlex.split(" ".join(words))).config
    assert (read.name, read.register_as, read.model.path, read.max_steps) == ("2026-11-12", "good-1", "/my models/1", 5)


def test_the_form_is_filled_with_the_presets_values_and_says_so(client: Client) -> None:
    page = client.get(PRESET).content.decode()
    fields = blank(from_preset("reverse-text-rl")).fields
    for key in ("batch.batch_size", "optimizer.lr"):
        item = fields[key]
        assert f'value="{item.value}"' in page
    assert "From preset reverse-text-rl" in page
    assert "Rollouts per optimizer step" in page  # the docstring of the field


def test_every_key_of_the_config_can_be_reached(client: Client) -> None:
    request = blank(from_preset("reverse-text-rl"))
    keys = {key.split(".type")[0] for key in request.source.origins}
    unreachable = {"kind", "data", "launcher"} | {key for key in keys if key.startswith("algorithm.loss.")}
    assert "algorithm.loss" in request.fields  # as one table, because its keys depend on its type
    reachable = set(request.fields) | {f"environments.0.args.{name}" for name in ("min_length", "max_length", "words")}
    assert keys - reachable <= unreachable


def test_an_unchanged_form_launches_the_preset(client: Client, warm: Model) -> None:
    response = post(client)
    run = Run.objects.get()
    assert response["Location"] == reverse("run", args=[run.key])
    assert run.state == RunState.PENDING
    assert run.created_by is not None
    model = {**from_preset("reverse-text-rl").config["model"], "path": warm.source}
    assert run.config == from_preset("reverse-text-rl").config | {"model": model}
    assert run.model == warm
    assert str(run.origins["model.path"]) == "model reverse-text-warm (preset reverse-text-rl)"
    assert str(run.origins["batch.batch_size"]) == "preset reverse-text-rl"
    assert run.events.get().actor == "user:ada"


def test_a_changed_field_is_launched_and_remembers_that_a_person_chose_it(client: Client) -> None:
    post(client, **{"optimizer.lr": "3e-4", "algorithm.strict_async_level": "on", "evaluation.every": "5"})
    run = Run.objects.get()
    assert run.parsed.optimizer.lr == 3e-4
    assert run.parsed.algorithm.strict_async_level
    assert run.parsed.evaluation is not None
    assert run.parsed.evaluation.every == 5
    assert str(run.origins["optimizer.lr"]) == "launch form"
    assert str(run.origins["optimizer.weight_decay"]) == "default"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("batch.batch_size", "100", "is not a multiple of sampling.group_size"),
        ("max_steps", "many", "valid integer"),
        ("max_steps", "", "valid integer"),
        ("optimizer.lr", "-1", "greater than 0"),
        ("name", "Not A Slug", "should match pattern"),
        ("sampling.max_tokens", "4096", "leaves no room for a prompt"),
        ("environments.0.weight", "0", "greater than 0"),
        ("environments.0.args", "{oops", "valid dictionary"),
    ],
)
def test_a_fault_is_shown_at_its_field_and_nothing_is_launched(
    client: Client, field: str, value: str, message: str
) -> None:
    response = post(client, **{field: value})
    assert response.status_code == 422
    item = response.context["filled"].fields[field]
    assert message in item.error
    assert item.value == value
    page = response.content.decode()
    assert f'id="error-{item.id}"' in page
    assert f'href="#{item.id}"' in page
    assert not Run.objects.exists()


def test_every_fault_is_shown_at_once_at_its_field_with_what_was_meant(client: Client) -> None:
    faults = {"environments.0.name": "reverse_txt", "optimizer.kind": "adam", "batch.batch_size": "100"}
    response = post(client, **faults, toml="[optimiser]\nlr = 1\n[optimizer]\nshedule = 'linear'\n")
    filled = response.context["filled"]
    assert {key for key, item in filled.fields.items() if item.error} == set(faults)
    assert "Did you mean reverse_text?" in filled.fields["environments.0.name"].error
    assert "Did you mean adamw?" in filled.fields["optimizer.kind"].error
    assert {key for key, _ in filled.errors} == {"optimiser", "optimizer.shedule"}
    assert "Did you mean optimizer.schedule?" in response.content.decode()
    broken = post(client, **{"seed": "x", "environments.0.args": "{ wrods = 2 }", "toml": "lr = "})
    assert broken.context["filled"].problem_count == 3
    assert "wrods" in broken.context["filled"].fields["environments.0.args"].error.lower()


def test_a_fold_with_a_fault_inside_is_open(client: Client) -> None:
    response = post(client, **{"trainer.keep_weights": "0"})
    trainer = next(section for section in response.context["filled"].sections if section.key == "trainer")
    assert trainer.is_open


def test_toml_overrides_win_over_the_fields(client: Client) -> None:
    post(client, **{"optimizer.lr": "1e-4", "toml": "[optimizer]\nlr = 5e-5\n"})
    run = Run.objects.get()
    assert run.parsed.optimizer.lr == 5e-5
    assert str(run.origins["optimizer.lr"]) == "launch form, TOML"


REVERSED = '[[environments]]\nname = "reverse_text"\nargs = {words = 2}\n'
SECOND = '[[environments]]\nname = "reverse_text"\nlabel = "other"\nweight = 3.0\n'
JUDGES = "".join(f'[[policies]]\nname = "{name}"\nmodel = "start"\n' for name in ("rival", "judge"))
MASKED = '[algorithm.loss]\nratio_low = 0.25\ntype = "masked_is"\n'


@pytest.mark.parametrize("toml", [REVERSED, REVERSED + SECOND, JUDGES, MASKED, "evaluation.every = 7\n"])
def test_toml_in_the_form_gives_what_the_same_gives_in_a_file(
    client: Client, warm: Model, tmp_path: Path, toml: str
) -> None:
    (tmp_path / "more.toml").write_text(toml)
    of_file = resolve("reverse-text-rl", [tmp_path / "more.toml"], {"model.path": warm.source})
    response = post(client, toml=toml)
    assert response.status_code == 302, response.context["filled"].errors
    run = Run.objects.get()
    assert run.config == of_file.config.model_dump(mode="json")
    typed = {key for key, origin in run.origins.items() if str(origin) == "launch form, TOML"}
    assert typed == {key for key, origin in of_file.origins.items() if origin.kind is OriginKind.FILE}


@pytest.mark.parametrize(
    ("toml", "message"), [("lr = ", "This is not TOML"), ("[optimiser]\nlr = 1", "not a known key")]
)
def test_bad_toml_is_refused_with_a_reason(client: Client, toml: str, message: str) -> None:
    response = post(client, toml=toml)
    assert response.status_code == 422
    assert message in response.content.decode()
    assert not Run.objects.exists()


def test_the_summary_of_a_batch_of_tokens_counts_no_rollouts() -> None:
    config = resolve("reverse-text-rl", overrides={"batch.token_batch_size": 65536, "batch.batch_size": 8}).config
    summary = summarise(config)
    figures = dict(summary.figures)
    assert figures["Per step"] == "at most 65,536 tokens, in groups of 8"
    assert "Training rollouts" not in figures
    assert not any("batch under" in hint for hint in summary.hints)
    external = resolve("external-trainer", overrides={"batch.token_batch_size": 4096}).config
    assert dict(summarise(external).figures)["Per step"].startswith("at most 4,096 tokens")


def test_the_summary_tells_how_groups_of_the_environments_differ() -> None:
    rows = [{"name": "reverse_text", "group_size": 4, "max_turns": 3}, {"name": "reverse_text", "label": "large"}]
    overrides = {"environments": rows, "batch.batch_size": 16, "sampling.group_size": 8, "sampling.max_tokens": 10}
    summary = summarise(resolve("reverse-text-rl", overrides=overrides | {"max_steps": 100}).config)
    figures = dict(summary.figures)
    assert figures["Per step"] == "at most 4 groups of 4 to 8"
    assert figures["Most tokens generated"] == "48,000"
    assert any("groups under 8" in hint for hint in summary.hints)


def test_a_choice_that_an_environment_need_not_make_is_left_open(client: Client) -> None:
    filled = client.get(f"{reverse('launch')}?preset=reverse-text-rl").context["filled"]
    for name in ("advantage", "process"):
        field = filled.fields[f"environments.0.{name}"]
        assert (field.options[0], field.value) == ("", "")
    post(client, **{"environments.0.advantage": "max_rl", "environments.0.schedule": '[{"step": 0, "weight": 2}]'})
    [ref] = Run.objects.get().parsed.environments
    assert (ref.advantage, ref.weight_at(7), ref.process) == ("max_rl", 2.0, None)


def test_evaluation_can_be_switched_off(client: Client) -> None:
    post(client, **{"evaluation.on": "(absent)"})
    assert Run.objects.get().parsed.evaluation is None


def test_evaluation_can_be_switched_on(client: Client) -> None:
    path = f"{reverse('launch')}?preset=reverse-text-sft"
    client.post(path, filled("reverse-text-sft", **{"evaluation.on": "on"}))
    assert Run.objects.get().parsed.evaluation is not None


def test_an_environment_can_be_added_and_taken_out(client: Client) -> None:
    another = {"environments.1.name": "reverse_text", "environments.1.args": "{ words = 2 }"}
    post(client, **{"environments.0.name": "", **another})
    assert [(ref.name, ref.args) for ref in Run.objects.get().parsed.environments] == [("reverse_text", {"words": 2})]
    assert "names &#x27;reverse_text&#x27; twice" in post(client, **another).content.decode()
    response = post(client, **{"environments.0.name": ""})
    assert "at least one environment" in response.content.decode()


def test_the_summary_counts_what_the_form_comes_to_and_lists_what_changed(client: Client) -> None:
    response = client.post(f"{reverse('launch-check')}?preset=reverse-text-rl", filled(**{"batch.batch_size": "64"}))
    page = response.content.decode()
    assert "8 groups of 8" in page
    size = from_preset("reverse-text-rl").config["batch"]["batch_size"]
    assert f"<del>{size}</del> <ins>64</ins>" in page
    assert not Run.objects.exists()


def test_the_summary_says_what_is_wrong(client: Client) -> None:
    response = client.post(f"{reverse('launch-check')}?preset=reverse-text-rl", filled(**{"batch.batch_size": "7"}))
    assert "1 thing to mend" in response.content.decode()


def test_a_clone_starts_from_the_runs_values_and_keeps_their_origins(client: Client, warm: Model) -> None:
    run = make_run(overrides={"optimizer.lr": 7e-4, "model.path": warm.source})
    path = f"{reverse('launch')}?clone={run.key}"
    assert 'value="0.0007"' in client.get(path).content.decode()
    unlike_the_preset = {"optimizer.lr": "0.0007", "max_steps": str(run.config["max_steps"])}
    unlike_the_preset["model.path"] = warm.source
    client.post(path, filled(**unlike_the_preset, seed="11"))
    clone = Run.objects.order_by("-pk")[0]
    assert clone.pk != run.pk
    assert clone.config == run.config | {"seed": 11}
    assert str(clone.origins["optimizer.lr"]) == f"run {run.key}"
    assert str(clone.origins["seed"]) == "launch form"
    assert str(clone.origins["optimizer.eps"]) == "default"


def cloned(client: Client, run: Run) -> Run:
    """Launched from the form as it opens."""
    answer = client.post(f"{reverse('launch')}?clone={run.key}", as_posted(blank(from_run(run))))
    assert answer.status_code == 302, [(item.key, item.error) for item in answer.context["filled"].faulty]
    return Run.objects.latest("pk")


def trained(*steps: int) -> Run:
    """A run with checkpoints of these steps."""
    run, epoch = story.train(max_steps=9, trainer__keep_checkpoints=9)
    for step in steps:
        path = str(run.directory / "checkpoints" / f"step_{step}")
        found = CheckpointIn(step=step, path=path, manifest_sha256="b" * 64, size_bytes=5)
        checkpoints.add_checkpoint(run, epoch=epoch, checkpoint=found)
    return run


def test_a_clone_of_a_fork_is_a_fork_of_the_same_checkpoint_with_its_optimizer(client: Client) -> None:
    source = trained(1, 2)
    post(client, **{"model.path": f"{source.key}@1", "fork_optimizer": "on"})
    fork = Run.objects.latest("pk")
    assert fork.forked_from is not None
    assert (fork.forked_from.run, fork.forked_from.step, fork.fork_optimizer) == (source, 1, True)
    clone = cloned(client, fork)
    assert clone.pk != fork.pk
    assert (clone.forked_from, clone.fork_optimizer) == (fork.forked_from, True)
    assert clone.origins["model.path"] == fork.origins["model.path"]
    assert clone.parsed.model.path != fork.parsed.model.path
    again = cloned(client, clone)
    assert (again.forked_from, again.fork_optimizer) == (fork.forked_from, True)


def test_a_clone_of_an_evaluation_of_checkpoints_measures_all_of_them(client: Client) -> None:
    source = trained(2, 4)
    asked = evaluating.EvaluationIn(target=f"{source.key}@2,4")
    run = evaluating.launch(
        asked,
        project=source.project,
        user=None,
        actor="user:ada",
        forkable=Run.objects.all(),
        origin=COMMAND_LINE,
    )
    Run.objects.filter(pk=run.pk).update(state=RunState.FINISHED, finished_at=run.created_at)
    clone = cloned(client, run)
    assert clone.pk != run.pk
    versions = PolicyVersion.objects.filter(run=clone).order_by("version")
    assert [(each.version, each.checkpoint.run) for each in versions if each.checkpoint] == [(2, source), (4, source)]
    assert (clone.max_steps, clone.config["evaluation"]) == (2, run.config["evaluation"])


def test_what_learns_from_rollouts_of_a_fork_starts_from_the_same_checkpoint(client: Client) -> None:
    source = trained(1)
    post(client, **{"model.path": f"{source.key}@1"})
    fork = life.start(Run.objects.latest("pk"))
    policies.published(policies.register_initial(fork, path=fork.parsed.model.path))
    story.submit(fork, [played("a", [0.5, 1.0])], actor="api:t")
    learner = with_version(from_preset("reverse-text-sft"), make(fork))
    assert learner.values["model"]["path"] == f"{source.key}@1"


def test_the_state_of_an_optimizer_is_taken_of_a_checkpoint_alone(client: Client) -> None:
    answer = post(client, fork_optimizer="on")
    assert answer.status_code == 422
    assert "a checkpoint to train from" in answer.context["filled"].fields["fork_optimizer"].error
    assert not Run.objects.exists()


def test_what_need_not_be_set_is_emptied_again_in_a_clone(client: Client, warm: Model) -> None:
    chosen = {"batch.token_batch_size": 4096, "algorithm.corrections.max_divergence": 2.0, "model.path": warm.source}
    run = make_run(overrides=chosen)
    posted = {"max_steps": str(run.config["max_steps"]), "model.path": warm.source}
    emptied = {"batch.token_batch_size": "", "algorithm.corrections.max_divergence": " "}
    client.post(f"{reverse('launch')}?clone={run.key}", filled(**posted, **emptied))
    clone = Run.objects.latest("pk")
    assert clone.pk != run.pk
    assert clone.config["batch"]["token_batch_size"] is None
    assert clone.config["algorithm"]["corrections"]["max_divergence"] is None


def test_a_part_of_the_data_is_off_again_in_a_clone_whose_fields_of_it_are_emptied(client: Client) -> None:
    data = {"path": "org/pairs", "solutions": False, "preference": {"beta": 0.1}}
    data["validation"] = {"path": "org/others", "every": 25}
    run = make_run(preset="reverse-text-sft", overrides={"data": data})
    path, posted = f"{reverse('launch')}?clone={run.key}", as_posted(blank(from_run(run)))
    client.post(path, posted | {"seed": "11"})
    assert Run.objects.latest("pk").config["data"] == run.config["data"]
    client.post(
        path, posted | dict.fromkeys(["data.preference.beta", "data.validation.path", "data.validation.every"], "")
    )
    emptied = Run.objects.latest("pk").config["data"]
    assert (emptied["preference"], emptied["validation"]) == (None, None)
    page = client.post(path, posted | {"data.validation.every": ""}).content.decode()
    assert 'id="error-id-data-validation-every"' in page


def test_a_clone_of_a_run_from_before_holds_out_what_it_held_out(client: Client) -> None:
    data = {"path": "org/pairs", "validation": {"share": 0.1}}
    run = make_run(preset="reverse-text-sft", overrides={"data": data})
    del run.config["data"]["validation"]["hold_out"]
    with store.beyond_rights():
        run.save(update_fields=["config"])
    client.post(f"{reverse('launch')}?clone={run.key}", as_posted(blank(from_run(run))))
    clone = Run.objects.latest("pk")
    assert clone.pk != run.pk
    assert clone.config["data"]["validation"]["hold_out"] == "lines"


def test_a_table_is_what_is_typed_and_nothing_of_what_it_was_before(client: Client, warm: Model) -> None:
    arguments = {"block-size": 16, "enforce-eager": True}
    rival = {"name": "rival", "model": "start"}
    run = make_run(overrides={"inference.arguments": arguments, "policies": [rival], "model.path": warm.source})
    path, posted = f"{reverse('launch')}?clone={run.key}", as_posted(blank(from_run(run)))
    client.post(path, posted | {"inference.arguments": '{"block-size": 16}', "policies": ""})
    clone = Run.objects.latest("pk")
    assert (clone.config["inference"]["arguments"], clone.config["policies"]) == ({"block-size": 16}, [])
    client.post(path, posted | {"inference.arguments": ""})
    assert Run.objects.latest("pk").config["inference"]["arguments"] == {}


def test_a_run_is_launched_in_the_chosen_project(client: Client) -> None:
    user = make_user("olga", project=make_project("words"))
    other = make_project("numbers")
    other.memberships.create(user=user, role=Role.OPERATOR)
    make_warm(other)
    signed_in(user).post(PRESET, filled() | {"project": "numbers"})
    assert Run.objects.get().project == other


def test_the_form_begins_in_the_project_of_what_it_starts_from(client: Client) -> None:
    admin = make_user("root")
    admin.is_superuser = True
    admin.save()
    make_project("alpha")
    run = make_run()
    chosen = f'<option value="{run.project.slug}" selected>'
    for query in (f"clone={run.key}", f"preset=reverse-text-rl&project={run.project.slug}"):
        assert chosen in signed_in(admin).get(f"{reverse('launch')}?{query}").content.decode()
    viewer = make_user("vera", role=Role.VIEWER)
    make_project("mine").memberships.create(user=viewer, role=Role.OPERATOR)
    assert signed_in(viewer).get(f"{reverse('launch')}?clone={run.key}").status_code == 200


def test_what_changed_since_the_check_is_told_on_the_form_which_keeps_what_was_typed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deleted(*arguments: object, **fields: object) -> None:
        raise Conflict("Checkpoint abc@1 was deleted meanwhile. Take another step.")

    monkeypatch.setattr(life, "create", deleted)
    answer = post(client, name="typed")
    assert answer.status_code == 422
    page = answer.content.decode()
    assert "Checkpoint abc@1 was deleted meanwhile. Take another step." in page
    assert 'value="typed"' in page


def test_an_adapter_that_a_fork_has_already_is_told_before_it_is_launched(client: Client) -> None:
    source, epoch = story.train(model__lora__rank=8, model__lora__path="/adapters/first")
    path = str(source.directory / "checkpoints" / "step_1")
    found = CheckpointIn(step=1, path=path, manifest_sha256="b" * 64, size_bytes=5)
    checkpoints.add_checkpoint(source, epoch=epoch, checkpoint=found)
    changes = {"model.path": f"{source.key}@1", "model.lora.rank": "8", "model.lora.path": "/adapters/first"}
    page = client.post(reverse("launch-check") + "?preset=reverse-text-rl", filled() | changes).content.decode()
    assert "has this adapter merged in already" in page


def test_a_run_cannot_be_launched_in_a_foreign_project(client: Client) -> None:
    make_project("foreign")
    assert client.post(PRESET, filled() | {"project": "foreign"}).status_code == 403
    assert not Run.objects.exists()


def test_an_unknown_preset_is_not_found(client: Client) -> None:
    assert client.get(f"{reverse('launch')}?preset=nope").status_code == 404


@pytest.mark.parametrize(
    ("value", "widget"),
    [(0.001, "number"), (3, "number"), (True, "checkbox"), ([0.9, 0.95], "json"), ("cpu", "select")],
)
def test_a_value_survives_being_shown_and_read(value: object, widget: str) -> None:
    assert read(show(value, widget), widget) == value


def test_optional_parts_of_the_data_are_on_when_one_of_their_fields_is_set(client: Client) -> None:
    path = f"{reverse('launch')}?preset=reverse-text-sft"
    page = client.get(path).content.decode()
    assert "Validation path" in page
    assert "Preference beta" in page
    pairs = {"data.path": "org/pairs", "data.solutions": "(absent)"}
    beta, share = {"data.preference.beta": "0.1"}, {"data.validation.share": "0.05"}
    client.post(path, filled("reverse-text-sft", **pairs, **beta, **share))
    data = Run.objects.get().config["data"]
    assert (data["preference"], data["validation"]["share"]) == ({"beta": 0.1}, 0.05)
    client.post(path, filled("reverse-text-sft"))
    assert Run.objects.latest("id").config["data"]["preference"] is None


CHECK = f"{reverse('launch-check')}?preset=reverse-text-rl"
MAKE = f"{reverse('launch-make-model')}?preset=reverse-text-rl"


def test_a_form_whose_model_is_missing_says_so_at_the_field_and_offers_to_make_it(client: Client, warm: Model) -> None:
    warm.delete()
    response = client.get(PRESET)
    assert response.status_code == 200
    page = response.content.decode()
    assert "There is no model reverse-text-warm here yet" in response.context["filled"].fields["model.path"].error
    assert "Make reverse-text-warm" in page
    assert "1 thing to mend" in page
    assert "Ready to launch" not in page
    assert post(client).status_code == 422
    assert not Run.objects.exists()


def test_the_button_launches_the_run_that_makes_the_model_once(client: Client, warm: Model) -> None:
    warm.delete()
    for _ in range(2):
        page = client.post(MAKE, filled(), headers={"HX-Request": "true"}).content.decode()
        run = Run.objects.get()
        assert (run.kind, run.parsed.register_as, run.events.get().actor) == ("sft", "reverse-text-warm", "user:ada")
        assert f'<a href="{reverse("run", args=[run.key])}">' in page
        assert 'hx-trigger="every 3s"' in page
        assert "Make reverse-text-warm" not in page
    Run.objects.update(state=RunState.FAILED, finished_at=run.created_at)
    page = client.post(CHECK, filled()).content.decode()
    assert "was to make it, but failed" in page
    assert "Make reverse-text-warm" in page


def test_the_form_is_ready_when_the_model_was_made(client: Client, warm: Model) -> None:
    page = client.post(CHECK, filled()).content.decode()
    assert "Ready to launch" in page
    assert 'id="model-note" hx-swap-oob="true"' in page
    assert "offer" not in page
    client.post(MAKE, filled())
    assert not Run.objects.exists()


def test_without_scripts_the_button_leads_to_the_run(client: Client, warm: Model) -> None:
    warm.delete()
    response = client.post(MAKE, filled())
    assert response["Location"] == reverse("run", args=[Run.objects.get().key])


def test_a_viewer_makes_no_model(viewer_client: Client, warm: Model) -> None:
    warm.delete()
    assert viewer_client.post(MAKE, filled()).status_code == 403
    assert not Run.objects.exists()


@pytest.mark.parametrize(("path", "message"), [("/nowhere/at/all", "does not exist"), ("nonsuch", "has no model")])
def test_a_model_that_would_not_load_is_refused_at_its_field(client: Client, path: str, message: str) -> None:
    response = post(client, **{"model.path": path})
    assert response.status_code == 422
    assert message in response.context["filled"].fields["model.path"].error
    assert not Run.objects.exists()


def test_a_run_is_launched_from_a_model_of_the_list(client: Client) -> None:
    make_model(make_project(), "mine", whole_model())
    gallery = client.get(reverse("launch"), {"model": "mine"}).content.decode()
    assert "?model=mine&amp;preset=reverse-text-rl" in gallery
    path = f"{PRESET}&model=mine"
    assert 'value="mine"' in client.get(path).content.decode()
    client.post(path, filled() | {"model.path": "mine"})
    assert Run.objects.get().parsed.model.path == str(whole_model())
