"""What is another project's stays so when its name stands in a body, in a query, or beside a name of ours in a path.

Each case is sent twice by somebody of ours: with what is ours, which is taken, so that the case means something; then
with what is theirs, which is refused or not found, changes nothing, and shows nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
import pytest
from django.apps import apps

from rollouts.models import Membership, Role
from tests.access.asking import Outcome, ask
from tests.access.people import Person, World
from tests.access.world import Possessions
from tests.frontend.test_launch import filled
from tests.rollouts import story

pytestmark = pytest.mark.django_db
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


def api(path: str, body: Callable[[World, Possessions], Any]) -> Case:
    return Case(
        "POST", lambda world, of: path.format(run=world.ours.run, other=world.ours.other), body, by="token: everything"
    )


def page(path: Callable[[World, Possessions], str]) -> Case:
    return Case("GET", path)


def launch_page(query: str, body: Callable[[World, Possessions], dict[str, str]], **facts: Any) -> Case:
    return Case("POST", lambda world, of: f"/runs/new/?{query}", body, **facts)


CASES: dict[str, Case] = {
    "project of a launch": api(
        "/api/v1/runs", lambda world, of: {"preset": "external-trainer", "project": of.project.slug}
    ),
    "run that is forked": api(
        "/api/v1/runs", lambda world, of: {"preset": "reverse-text-rl", "fork_from": f"{of.run.key}@0"}
    ),
    "run that is forked by its name as a model": api(
        "/api/v1/runs",
        lambda world, of: {"preset": "reverse-text-rl", "overrides": {"model.path": f"{of.run.key}@0"}},
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
    "project of a launch in the form": launch_page(
        "preset=external-trainer", lambda world, of: filled("external-trainer") | {"project": of.project.slug}
    ),
    "run that is forked in the form": launch_page(
        "preset=reverse-text-rl", lambda world, of: filled() | {"project": "ours", "model.path": f"{of.run.key}@0"}
    ),
    "run that is forked in the TOML of the form": launch_page(
        "preset=reverse-text-rl",
        lambda world, of: filled() | {"project": "ours", "toml": f"[model]\npath = '{of.run.key}@0'\n"},
    ),
    "project in which a model is made": Case(
        "POST",
        lambda world, of: "/runs/new/make-model/?preset=external-trainer",
        lambda world, of: filled("external-trainer") | {"project": of.project.slug},
    ),
    "run that is cloned": page(lambda world, of: f"/runs/new/?clone={of.run.key}"),
    "group of a run of ours": page(
        lambda world, of: f"/runs/{world.ours.run.key}/groups/{quote(str(of.parameters()['group']))}/"
    ),
    "tokens of a run of ours": page(lambda world, of: f"/runs/{world.ours.run.key}/tokens/{of.values.pk}/"),
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
