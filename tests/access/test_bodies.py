"""What is another project's stays so when its name stands in a body, in a query, or beside a name of ours in a path.

Each case is sent twice by somebody of ours: with what is ours, which is taken, so that the case means something; then
with what is theirs, which is refused or not found, changes nothing, and shows nothing.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
import pytest
from django.apps import apps

from rollouts.formats import batch_body
from rollouts.models import Membership, QueueTurn, Role
from tests.access import rules
from tests.access.asking import Outcome, ask, undone
from tests.access.people import Person, World
from tests.access.world import Possessions
from tests.controlplane.command_line import Rollyard
from tests.frontend.test_launch import filled
from tests.model_files import write_model
from tests.rollouts import story
from trainers.wire import StepAck, TrainingBatch
from workers.slurm import templates

pytestmark = pytest.mark.django_db
RL = "reverse-text-rl"
SFT = {"data.solutions": False, "data.path": "org/data"}
NO_MODEL, NO_FORK, NO_ENDPOINT = "has no model", "you may not fork it", "has no endpoint"
FORM = "application/x-www-form-urlencoded"
JSON = "application/json"


class Case(NamedTuple):
    """A request of ours that names something of `of`."""

    method: str
    path: Callable[[World, Possessions], str]
    body: Callable[[World, Possessions], Any] = lambda world, of: b""
    """A dict of a form by somebody with a session; of JSON by a token."""
    taken: frozenset[int] = frozenset({200, 201, 302})
    refused: frozenset[int] = frozenset({403, 404, 409, 422})
    by: str = "admin"
    says: str = ""
    """What a page that is answered 200 says of what is theirs, and not of what is ours."""


def api(path: str, body: Callable[[World, Possessions], Any]) -> Case:
    return Case(
        "POST", lambda world, of: path.format(run=world.ours.run, other=world.ours.other), body, by="token: everything"
    )


def page(path: Callable[[World, Possessions], str]) -> Case:
    return Case("GET", path)


def overriding(key: str, naming: Callable[[Possessions], Any], preset: str = RL, **others: Any) -> Case:
    """A launch over the API with one value of the config that names something."""
    return api(
        "/api/v1/runs",
        lambda world, of: {"preset": preset, "overrides": {**others, key: naming(of)}},
    )


def configured(naming: Callable[[Possessions], str]) -> Case:
    return api("/api/v1/runs", lambda world, of: {"preset": RL, "config": {"model": {"path": naming(of)}}})


def form(page: str, naming: Callable[[Possessions], dict[str, str]], says: str = "", query: str = "") -> Case:
    """The form of a launch; its pages beside answer 200 and say what is wrong."""
    refused = frozenset({200 if page else 422})
    body = filled() | {"project": "ours"}
    if query:
        del body["model.path"]
    return Case(
        "POST",
        lambda world, of: f"/runs/new/{page}?preset={RL}{query.format(of=of)}",
        lambda world, of: body | naming(of),
        refused=refused,
        says=says,
    )


def in_form_of(page: str) -> Case:
    return Case(
        "POST",
        lambda world, of: f"/runs/new/{page}?preset=external-trainer",
        lambda world, of: filled("external-trainer") | {"project": of.project.slug},
    )


def cloned(page: str) -> Case:
    return Case(
        "POST",
        lambda world, of: f"/runs/new/{page}?clone={of.run.key}",
        lambda world, of: filled() | {"project": "ours"},
    )


def model_of(of: Possessions) -> str:
    return of.only.name


def fork_of(of: Possessions) -> str:
    return f"{of.run.key}@0"


def toml_of(naming: Callable[[Possessions], str]) -> Callable[[Possessions], dict[str, str]]:
    return lambda of: {"toml": f"[model]\npath = '{naming(of)}'\n"}


def compared(root: str, named: str, by: str = "admin") -> Case:
    """An evaluation beside one of ours."""

    def path(world: World, of: Possessions) -> str:
        numbers = {name: world.ours.run.evaluations.latest("pk").pk for name in ("first", "second")}
        numbers[named] = of.run.evaluations.latest("pk").pk
        slash = "/" if root == "/" else ""
        return f"{root}evaluations/compare{slash}?{urlencode(numbers)}"

    return Case("GET", path, by=by)


def made_in(of: Possessions) -> dict[str, str]:
    return rules.made_of(of) | {"runs": of.run.key}


def dataset_of(field: str, naming: Callable[[Possessions], str]) -> Case:
    """A version that the form makes of something."""
    return Case(
        "POST",
        lambda world, of: "/datasets/new/",
        lambda world, of: {"name": "made", "project": "ours", field: naming(of)},
        refused=frozenset({422}),
    )


def dataset_of_api(recipe: Callable[[Possessions], dict[str, Any]]) -> Case:
    return api("/api/v1/datasets", lambda world, of: {"name": "made", "project": "ours", "recipe": recipe(of)})


def learning(page: str) -> Case:
    """The form of a run that learns from a version."""
    return Case(
        "POST",
        lambda world, of: f"/runs/new/{page}?preset=reverse-text-sft&version={of.dataset.pk}",
        lambda world, of: filled("reverse-text-sft") | {"project": "ours"},
    )


def measured(naming: Callable[[Possessions], str]) -> Case:
    """An evaluation of what is named, by the form."""
    return Case(
        "POST",
        lambda world, of: "/evaluations/new/",
        lambda world, of: {"project": "ours", "target": naming(of), "environments": "reverse_text"},
        refused=frozenset({422}),
    )


def policies_of(of: Possessions) -> dict[str, str]:
    """A judge behind the project's own endpoint, as the form has it."""
    return {"policies": json.dumps([{"name": "judge", "endpoint": endpoint_of(of)}])}


def served(model: str) -> list[dict[str, str]]:
    """A judge that the run serves itself."""
    return [{"name": "judge", "model": model}]


def weights_of(of: Possessions) -> str:
    """A model among the files of the project's run."""
    return str(write_model(of.run.directory / "weights" / "step_7"))


def curator_of(of: Possessions) -> str:
    """Somebody who may curate in the project, and not in the other one."""
    return {"ours": "curator", "theirs": "stranger"}[of.project.slug]


def endpoint_of(of: Possessions) -> str:
    return f"only-of-{of.project.slug}"


CASES: dict[str, Case] = {
    "project of a launch": api(
        "/api/v1/runs", lambda world, of: {"preset": "external-trainer", "project": of.project.slug}
    ),
    "run that is forked": api(
        "/api/v1/runs", lambda world, of: {"preset": "reverse-text-rl", "fork_from": f"{of.run.key}@0"}
    ),
    "run that is forked by its name as a model": overriding("model.path", fork_of),
    "run that is forked by its name in the config": configured(fork_of),
    "model by an override of a launch": overriding("model.path", model_of),
    "model by the config of a launch": configured(model_of),
    "adapter of another run": overriding(
        "model.lora.path", lambda of: str(of.run.directory / "adapter"), **{"model.lora.rank": 8}
    ),
    "endpoint of another project": overriding("policies", lambda of: [{"name": "judge", "endpoint": endpoint_of(of)}]),
    "model of another project beside the policy": overriding("policies", lambda of: served(model_of(of))),
    "weights of another run beside the policy": overriding("policies", lambda of: served(weights_of(of))),
    "model beside the policy in the form": form("", lambda of: {"policies": json.dumps(served(model_of(of)))}),
    "model beside the policy in the check of the form": form(
        "check/", lambda of: {"policies": json.dumps(served(model_of(of)))}, NO_MODEL
    ),
    "model beside the policy of a fork": api(
        "/api/v1/runs",
        lambda world, of: {
            "preset": RL,
            "fork_from": f"{world.ours.run.key}@0",
            "overrides": {"policies": served(model_of(of))},
        },
    ),
    "endpoint that is measured": overriding(
        "model.endpoint", endpoint_of, **{"kind": "eval", "model.path": "", "inference.replicas": 0}
    ),
    "endpoint in the form": form("", policies_of),
    "endpoint in the check of the form": form("check/", policies_of, NO_ENDPOINT),
    "endpoint where a model is made": form("make-model/", policies_of, NO_ENDPOINT),
    "data of another run": overriding(
        "data.path", lambda of: str(of.run.directory / "a.jsonl"), "reverse-text-sft", **SFT
    ),
    "validation data of another run": overriding(
        "data.validation.path", lambda of: str(of.run.directory / "b.jsonl"), "reverse-text-sft", **SFT
    ),
    "run whose batches are trained again": api(
        "/api/v1/runs/{other.key}/replays",
        lambda world, of: {"source": of.run.key, "first_step": 0, "last_step": 0},
    ),
    "lease that is settled": api(
        "/api/v1/runs/{run.key}/work/settle",
        lambda world, of: {
            "token": str(of.lease.token),
            "problem_key": "p",
            "rollouts": [story.rollout()],
        },
    ),
    "project of a launch in the form": in_form_of(""),
    "project of the check of the form": in_form_of("check/"),
    "project in which a model is made": in_form_of("make-model/"),
    "model in the form": form("", lambda of: {"model.path": of.only.name}),
    "model in the check of the form": form("check/", lambda of: {"model.path": of.only.name}, NO_MODEL),
    "model in the TOML of the form": form("", toml_of(model_of)),
    "model in the TOML of the check": form("check/", toml_of(model_of), NO_MODEL),
    "model in the TOML where one is made": form("make-model/", toml_of(model_of), NO_MODEL),
    "model that the form begins with": Case(
        "GET",
        lambda world, of: f"/runs/new/?preset={RL}&model={of.only.name}",
        refused=frozenset({200}),
        says=NO_MODEL,
    ),
    "model that the check of the form begins with": form("check/", lambda of: {}, NO_MODEL, "&model={of.only.name}"),
    "model that is made begins with": form("make-model/", lambda of: {}, NO_MODEL, "&model={of.only.name}"),
    "run that is forked in the form": form("", lambda of: {"model.path": fork_of(of)}),
    "run that is forked in the check of the form": form("check/", lambda of: {"model.path": fork_of(of)}, NO_FORK),
    "run that is forked in the TOML of the form": form("", toml_of(fork_of)),
    "run that is forked in the TOML of the check": form("check/", toml_of(fork_of), NO_FORK),
    "run that is cloned": page(lambda world, of: f"/runs/new/?clone={of.run.key}"),
    "run that is cloned in the form": cloned(""),
    "run that is cloned in the check of the form": cloned("check/"),
    "run that is cloned where a model is made": cloned("make-model/"),
    "version that is learned from": page(
        lambda world, of: f"/runs/new/?preset=reverse-text-sft&version={of.dataset.pk}"
    ),
    "version that is learned from in the form": learning(""),
    "version in the check of the form": learning("check/"),
    "version where a model is made": learning("make-model/"),
    "project of an evaluation": Case(
        "POST",
        lambda world, of: "/evaluations/new/",
        lambda world, of: {"project": of.project.slug, "target": of.only.name, "environments": "reverse_text"},
    ),
    "model that is measured": measured(model_of),
    "run that is measured": measured(fork_of),
    "endpoint that is measured by name": measured(lambda of: f"endpoint:{endpoint_of(of)}"),
    "version that is exported": Case(
        "POST",
        lambda world, of: "/exports/new/",
        lambda world, of: {"version": str(of.dataset.pk), "form": "sft", "file_format": "jsonl"},
    ),
    "version that is exported over the API": api(
        "/api/v1/exports", lambda world, of: {"version": str(of.dataset), "form": "sft", "project": of.project.slug}
    ),
    "project of a queue": Case(
        "POST",
        lambda world, of: "/queues/new/",
        lambda world, of: {"name": "named by its project", "project": of.project.slug},
    ),
    "run of a queue": Case(
        "POST",
        lambda world, of: "/queues/new/",
        lambda world, of: {"name": "named by its run", "project": "ours", "run": of.run.key},
        refused=frozenset({422}),
    ),
    "queue whose disagreements one holds": Case(
        "POST",
        lambda world, of: "/queues/new/",
        lambda world, of: {"name": "named by its source", "project": "ours", "source": of.queue.key},
    ),
    "person who is given a queue": Case(
        "POST",
        lambda world, of: "/queues/new/",
        lambda world, of: {"name": "named by its people", "project": "ours", "people": curator_of(of)},
    ),
    "person who is assigned": Case(
        "POST",
        lambda world, of: f"/queues/{world.ours.queue.key}/assign/",
        lambda world, of: {"people": curator_of(of)},
    ),
    "project of a queue over the API": api(
        "/api/v1/queues", lambda world, of: {"name": "over the API", "project": of.project.slug}
    ),
    "run of a queue over the API": api(
        "/api/v1/queues", lambda world, of: {"name": "over the API", "filter": {"run": of.run.key}}
    ),
    "queue whose disagreements one holds over the API": api(
        "/api/v1/queues", lambda world, of: {"name": "over the API", "source": of.queue.key}
    ),
    "person who is given a queue over the API": api(
        "/api/v1/queues", lambda world, of: {"name": "over the API", "people": [curator_of(of)]}
    ),
    "person who is assigned over the API": Case(
        "POST",
        lambda world, of: f"/api/v1/queues/{world.ours.queue.key}/people",
        lambda world, of: {"people": [curator_of(of)]},
        by="token: everything",
    ),
    "project of a dataset": Case("POST", lambda world, of: "/datasets/new/", lambda world, of: made_in(of)),
    "run of a dataset": dataset_of("runs", lambda of: of.run.key),
    "queue of a dataset": dataset_of("queue", lambda of: of.queue.key),
    "version of another dataset": dataset_of("version", lambda of: str(of.dataset)),
    "project of a dataset over the API": api("/api/v1/datasets", lambda world, of: rules.recipe_of(of)),
    "project of rows over the API": api("/api/v1/datasets/import", lambda world, of: rules.rows_of(of)),
    "run of a dataset over the API": dataset_of_api(lambda of: {"runs": [of.run.key]}),
    "queue of a dataset over the API": dataset_of_api(lambda of: {"queue": of.queue.key}),
    "version of another dataset over the API": dataset_of_api(lambda of: {"version": str(of.dataset)}),
    "run whose policy plays a trial": Case(
        "POST",
        lambda world, of: "/environments/reverse_text/try/",
        lambda world, of: {"run": of.run.key, "args": "{}", "split": "train", "problem_index": "0"},
    ),
    "endpoint that plays a trial": Case(
        "POST",
        lambda world, of: "/environments/reverse_text/try/",
        lambda world, of: {
            "run": world.ours.run.key,
            "endpoint": endpoint_of(of),
            "args": "{}",
            "split": "train",
            "problem_index": "0",
        },
        refused=frozenset({422}),
    ),
    "project of a trial": Case(
        "POST",
        lambda world, of: "/environments/reverse_text/try/",
        lambda world, of: {
            "project": of.project.slug,
            "endpoint": endpoint_of(of),
            "args": "{}",
            "split": "train",
            "problem_index": "0",
        },
    ),
    "evaluation that is compared": compared("/api/v1/", "first", by="token: everything"),
    "evaluation that another is compared with": compared("/api/v1/", "second", by="token: everything"),
    "evaluation that is compared on the page": compared("/", "first"),
    "evaluation that another is compared with on the page": compared("/", "second"),
    "trial of a run of ours": page(lambda world, of: f"/runs/{world.ours.run.key}/trials/{of.trial.key}/"),
    "group of a run of ours": page(
        lambda world, of: f"/runs/{world.ours.run.key}/groups/{quote(str(of.parameters()['group']))}/"
    ),
    "tokens of a run of ours": page(lambda world, of: f"/runs/{world.ours.run.key}/tokens/{of.values.pk}/"),
    "raw tokens of a run of ours": page(
        lambda world, of: f"/runs/{world.ours.run.key}/raw-tokens/{of.values.rollout_id}/"
    ),
    "token values of a run of ours": page(
        lambda world, of: f"/api/v1/runs/{world.ours.run.key}/token-values/{of.values.pk}"
    ),
}


def person_of(world: World, name: str) -> Person:
    return next(each for each in (*world.people, *world.staff, *world.machines) if each.name == name)


def send(world: World, case: Case, of: Possessions) -> Outcome:
    person, body = person_of(world, case.by), case.body(world, of)
    kind = JSON if person.scopes is not None else FORM
    if not isinstance(body, bytes):
        body = msgspec.json.encode(body) if kind == JSON else urlencode(body).encode()
    return ask(case.method, case.path(world, of), {"content-type": kind, **person.headers}, body)


@pytest.mark.parametrize("name", CASES)
def test_what_is_named_must_be_of_ours(world: World, name: str) -> None:
    case = CASES[name]
    own = send(world, case, world.ours)
    assert own.answer.status in case.taken, own.answer.body[:500]
    foreign = send(world, case, world.theirs)
    assert foreign.answer.status in case.refused, foreign.answer.body[:500]
    assert foreign.written == {}
    assert world.theirs.mark.encode() not in foreign.answer.body
    if case.says:
        assert case.says.encode() in foreign.answer.body
        assert case.says.encode() not in own.answer.body


def test_a_command_finds_no_model_of_another_project(world: World, tmp_path: Path) -> None:
    """Runs it may fork, whosever they are: who has a shell of the installation is its administrator."""
    for of, code in ((world.ours, 0), (world.theirs, 1)):
        with undone():
            words = ("launch", RL, f"model.path={of.only.name}", "--project", "ours")
            done = Rollyard(tmp_path)(*words)
            assert (done.returncode, NO_MODEL in done.stderr) == (code, code == 1), done.stderr


def test_nothing_of_another_run_is_announced(world: World) -> None:
    headers = {"content-type": JSON, "rollyard-epoch": str(world.ours.epoch)}
    headers |= person_of(world, "token: everything").headers
    for path, announced in (("policy-versions", rules.weights), ("checkpoints", rules.checkpoint)):
        for of, statuses in ((world.ours, {200, 201}), (world.theirs, {422})):
            body = msgspec.json.encode(announced(of))
            answer, written = ask("POST", f"/api/v1/runs/{world.ours.run.key}/{path}", headers, body)
            assert (answer.status in statuses, bool(written)) == (True, of is world.ours), answer.body


def test_no_values_of_another_projects_tokens_are_stored(world: World) -> None:
    ours, theirs = world.ours, world.theirs
    batch = ours.run.batches.get(step=0)
    rollout = msgspec.msgpack.decode(batch_body.encode(batch), type=TrainingBatch).rollouts[0]
    seen = story.seen(rollout, group=theirs.values.rollout.group.key)
    body = msgspec.json.encode(StepAck(metrics={}, batch_sha256=batch.sha256, token_values=[seen]))
    headers = {"content-type": JSON, "rollyard-epoch": str(ours.epoch), **person_of(world, "token: everything").headers}
    answer, written = ask("POST", f"/api/v1/runs/{ours.run.key}/steps/0", headers, body)
    assert (answer.status, written) == (422, {})
    assert "is of no rollout that this step trained on" in answer.json()["fields"]["token_values.0"]


def test_a_foreign_lease_is_not_held(world: World) -> None:
    path, headers = f"/api/v1/runs/{world.ours.run.key}/work/renew", person_of(world, "token: everything").headers
    tokens = [str(of.lease.token) for of in (world.ours, world.theirs)]
    answer, written = ask("POST", path, {"content-type": JSON, **headers}, msgspec.json.encode({"tokens": tokens}))
    assert answer.json() == {"held": tokens[:1]}
    assert written == {"rollouts_lease": 1}


def in_admin(world: World, path: str, form: Mapping[str, Any], *, by: str = "staff-admin") -> Outcome:
    return ask(
        "POST",
        f"/admin/rollouts/{path}",
        {"content-type": FORM, **person_of(world, by).headers},
        urlencode(form).encode(),
    )


def test_a_turn_of_somebody_else_is_not_answered(world: World) -> None:
    path, headers = f"/queues/{world.ours.queue.key}/say/", {"content-type": FORM, **person_of(world, "admin").headers}
    for of in (world.ours, world.theirs):
        turn = QueueTurn.objects.get(item__queue=of.queue)  # of its project's member
        body = urlencode({"turn": turn.key, "verdict": "accept"}).encode()
        answer, written = ask("POST", path, headers, body)
        assert (answer.status, written) == (404, {})
        by_token = {"content-type": JSON, **person_of(world, "token: everything").headers}
        body = msgspec.json.encode({"turn": str(turn.key), "verdict": "accept"})
        answer, written = ask("POST", f"/api/v1/queues/{world.ours.queue.key}/word", by_token, body)
        assert (answer.status, written) == (404, {})


def test_no_membership_of_another_project_is_made_by_its_name_in_a_form(world: World) -> None:
    new = {"user": world.ours.member.pk, "project": world.theirs.project.pk, "role": Role.ADMIN}
    answer, written = in_admin(world, "membership/add/", new)
    assert (answer.status, written) == (200, {}), "the form is shown again: that project is no choice"
    own = Membership.objects.get(user=world.ours.member)
    answer, written = in_admin(world, f"membership/{own.pk}/change/", new)
    assert (answer.status, written) == (200, {})
    assert (
        in_admin(world, f"membership/{own.pk}/change/", new | {"project": world.ours.project.pk}).answer.status == 302
    )


def test_no_membership_of_another_project_is_changed_on_the_page_of_ours(world: World) -> None:
    foreign = Membership.objects.get(user=world.theirs.member)
    form = {
        "name": "Ours",
        "slug": "ours",
        "memberships-TOTAL_FORMS": 1,
        "memberships-INITIAL_FORMS": 1,
        "memberships-0-id": foreign.pk,
        "memberships-0-project": world.ours.project.pk,
        "memberships-0-user": world.theirs.member.pk,
        "memberships-0-role": Role.ADMIN,
    }
    answer, written = in_admin(world, f"project/{world.ours.project.pk}/change/", form)
    assert "rollouts_membership" not in written
    assert world.theirs.member.username.encode() not in answer.body


@pytest.mark.parametrize("model", ["project", "membership", "run", "apitoken"])
@pytest.mark.parametrize("action", ["delete_selected", "delete"])
def test_no_action_on_many_rows_takes_one_of_another_project(world: World, model: str, action: str) -> None:
    row = world.theirs.row(apps.get_model("rollouts", model))
    assert row is not None
    form = {"action": action, "_selected_action": row.pk, "post": "yes", "select_across": 1, "index": 0}
    for by in ("staff-admin", "staff-viewer"):
        assert in_admin(world, f"{model}/", form, by=by).written == {}


@pytest.mark.parametrize("model", ["project", "user"])
def test_names_that_the_administration_site_completes_are_of_ours(world: World, model: str) -> None:
    query = f"app_label=rollouts&model_name=membership&field_name={model}"
    answer, written = ask("GET", f"/admin/autocomplete/?{query}&term=", person_of(world, "staff-admin").headers)
    assert (answer.status, written) == (200, {})
    if model == "project":
        assert [each["text"] for each in answer.json()["results"]] == [world.ours.project.name]


@pytest.mark.parametrize(
    "query",
    [
        "project__id__exact={project}",
        "key={run}",
        "q={run}",
        "project__members__password__startswith=a",
        "created_by__password__startswith=a",
    ],
)
def test_no_filter_reaches_into_another_project(world: World, query: str) -> None:
    theirs = world.theirs
    path = f"/admin/rollouts/run/?{query.format(project=theirs.project.pk, run=theirs.run.key)}"
    answer, written = ask("GET", path, person_of(world, "staff-admin").headers)
    assert answer.status in {200, 302, 400}
    assert theirs.mark.encode() not in answer.body
    assert written == {}


def test_template_of_other_projects_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text('[templates.ours]\npartition = "gpu"\nprojects = ["ours"]\n')
    assert templates.read(tmp_path, "ours", project="ours").partition == "gpu"
    assert templates.read(tmp_path, "default", project="theirs").partition == ""
    with pytest.raises(templates.TemplateError, match="the template ours is for runs of other projects"):
        templates.read(tmp_path, "ours", project="theirs")
