"""Who may call what: scopes, roles, foreign projects, bound and expired tokens, sessions."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from rest_framework.exceptions import AuthenticationFailed

from rollouts.doors.native import access
from rollouts.models import ApiToken, Membership, Role, Run, Scope
from rollouts.services.runs import tokens
from tests import store
from tests.factories import make_project, make_run, make_user
from tests.rollouts import story
from tests.rollouts.api import Api, make_token, problem, row_counts

pytestmark = pytest.mark.django_db

Call = Callable[[Api, Run], Any]

CALLS: dict[str, tuple[Scope, Call]] = {
    "show": (Scope.READ, lambda api, run: api.get(f"runs/{run.key}")),
    "metrics": (Scope.READ, lambda api, run: api.get(f"runs/{run.key}/metrics")),
    "events": (Scope.READ, lambda api, run: api.get(f"runs/{run.key}/events")),
    "stop": (Scope.LAUNCH, lambda api, run: api.post(f"runs/{run.key}/stop")),
    "submit": (Scope.SUBMIT, lambda api, run: api.post(f"runs/{run.key}/groups", story.scored("a"))),
    "claim": (Scope.SUBMIT, lambda api, run: api.post(f"runs/{run.key}/work/claim", {"holder": "x"})),
    "renew": (Scope.SUBMIT, lambda api, run: api.post(f"runs/{run.key}/work/renew", {"tokens": []})),
    "settle": (
        Scope.SUBMIT,
        lambda api, run: api.post(
            f"runs/{run.key}/work/settle", {"token": "x", "problem_key": "p", "rollouts": [story.rollout()]}
        ),
    ),
    "register": (Scope.TRAIN, lambda api, run: api.post(f"runs/{run.key}/trainer")),
    "fetch": (Scope.TRAIN, lambda api, run: api.get(f"runs/{run.key}/batches/0")),
    "ack": (Scope.TRAIN, lambda api, run: api.post(f"runs/{run.key}/steps/0", {"metrics": {}})),
    "announce": (
        Scope.TRAIN,
        lambda api, run: api.post(
            f"runs/{run.key}/policy-versions",
            {"version": 1, "path": "/x", "manifest_sha256": "a" * 64, "size_bytes": 1},
        ),
    ),
    "checkpoint": (
        Scope.TRAIN,
        lambda api, run: api.post(
            f"runs/{run.key}/checkpoints", {"step": 1, "path": "/x", "manifest_sha256": "a" * 64, "size_bytes": 1}
        ),
    ),
    "finish": (Scope.TRAIN, lambda api, run: api.post(f"runs/{run.key}/trainer/finish")),
}
every_call = pytest.mark.parametrize("name", CALLS)


@pytest.fixture
def run() -> Run:
    return make_run(epoch=0)


@every_call
def test_a_token_with_the_scope_alone_suffices_and_with_all_others_does_not(run: Run, name: str) -> None:
    scope, call = CALLS[name]
    without = Api(make_token([other for other in Scope if other != scope]), epoch=0)
    before = row_counts()
    problem(call(without, run), 403, "forbidden")
    assert row_counts() == before
    response = call(Api(make_token([scope]), epoch=0), run)
    assert response.status_code not in {401, 403, 404} or response.json()["code"] == "not_found"
    assert response.status_code < 500


@every_call
def test_without_a_token_nothing_is_answered(run: Run, name: str) -> None:
    response = CALLS[name][1](Api(), run)
    assert "`Authorization: Token ry_...`" in problem(response, 401, "not_authenticated")["detail"]
    assert response.headers["WWW-Authenticate"] == "Token"
    problem(CALLS[name][1](Api("ry_nonsense"), run), 401, "authentication_failed")


@every_call
def test_a_foreign_run_does_not_exist(run: Run, name: str) -> None:
    foreign = Api(make_token(project=make_project("theirs"), role=Role.ADMIN), epoch=0)
    body = problem(CALLS[name][1](foreign, run), 404, "not_found")
    missing = problem(CALLS[name][1](foreign, Run(key="nosuchrun")), 404, "not_found")
    assert body["detail"].replace(run.key, "nosuchrun") == missing["detail"], "the answers must not differ"


@every_call
def test_a_token_bound_to_a_run_opens_no_other(run: Run, name: str) -> None:
    other = make_run(epoch=0)
    problem(CALLS[name][1](Api(make_token(run=other), epoch=0), run), 404, "not_found")


@every_call
def test_a_token_opens_only_its_project_whatever_its_user_may_see(run: Run, name: str) -> None:
    theirs = make_project("theirs")
    user = make_user("both", role=Role.ADMIN)
    Membership.objects.create(user=user, project=theirs, role=Role.ADMIN)
    problem(CALLS[name][1](Api(make_token(user=user, project=theirs), epoch=0), run), 404, "not_found")


@every_call
def test_a_token_never_gives_more_than_its_users_role(run: Run, name: str) -> None:
    scope, call = CALLS[name]
    for role in (Role.VIEWER, Role.CURATOR):
        response = call(Api(make_token(role=role), epoch=0), run)
        if scope == Scope.READ:
            assert response.status_code == 200
        else:
            assert "operator" in problem(response, 403, "forbidden")["detail"]


def test_a_token_dies_with_its_users_membership_its_expiry_and_its_revocation(run: Run) -> None:
    token = make_token()
    api = Api(token)
    assert api.get(f"runs/{run.key}").status_code == 200
    Membership.objects.all().delete()
    problem(api.get(f"runs/{run.key}"), 404, "not_found")

    expired = Api(make_token(user=make_user("eve"), ttl=timedelta(hours=1)))
    with store.beyond_rights():
        ApiToken.objects.update(expiry=timezone.now() - timedelta(seconds=1))
    problem(expired.get(f"runs/{run.key}"), 401, "authentication_failed")

    bound = Api(make_token(user=make_user("bob"), run=run))
    assert bound.get(f"runs/{run.key}").status_code == 200
    assert tokens.revoke_run_tokens(run) == 1
    problem(bound.get(f"runs/{run.key}"), 401, "authentication_failed")


def test_what_a_token_lately_opened_is_not_asked_before_a_large_body_but_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, token = make_run(), make_token()
    asked, ask = list[tuple[Any, ...]](), access.opened

    def opened(*what: Any) -> access.Opened | None:
        asked.append(what)
        return ask(*what)

    def check(scope: Scope = Scope.SUBMIT, of: Run = run) -> int:
        asked.clear()
        access.check_token("10.0.0.1", of.key, token, scope)
        return len(asked)

    monkeypatch.setattr(access, "opened", opened)
    assert (check(), check(), check(Scope.TRAIN), check(of=make_run())) == (1, 0, 1, 1)
    assert access.opened(run.key, token, Scope.SUBMIT) is not None
    with store.beyond_rights():
        ApiToken.objects.all().delete()
    assert check() == 0, "its body is read"
    assert access.opened(run.key, token, Scope.SUBMIT) is None, "and nothing is done with it"
    problem(Api(token).post(f"runs/{run.key}/groups", story.scored("a")), 401, "authentication_failed")
    with pytest.raises(AuthenticationFailed):
        access.check_token("10.0.0.1", run.key, token, Scope.READ)


TOKENS: dict[str, Callable[[Run], str]] = {
    "good": lambda run: make_token(),
    "of this run": lambda run: make_token(run=run),
    "of another run": lambda run: make_token(run=make_run()),
    "of another project": lambda run: make_token(project=make_project("theirs"), role=Role.ADMIN),
    "of other scopes": lambda run: make_token([Scope.READ, Scope.LAUNCH]),
    "of a curator": lambda run: make_token(role=Role.CURATOR),
    "of a superuser": lambda run: make_token(user=User.objects.create_superuser("root")),
    "of nobody who may sign in": lambda run: make_token(user=User.objects.create_user("gone", is_active=False)),
    "expired": lambda run: make_token(ttl=timedelta(seconds=-1)),
    "unknown": lambda run: f"ry_{'x' * 60}",
    "of another secret": lambda run: make_token()[:-1] + "~",
}


@pytest.mark.parametrize("kind", TOKENS)
@pytest.mark.parametrize("name", ["submit", "fetch"])
def test_the_kernel_opens_to_just_those_tokens_that_the_views_let_in(run: Run, name: str, kind: str) -> None:
    scope, call = CALLS[name]
    token = TOKENS[kind](run)
    is_let_in = call(Api(token, epoch=0), run).status_code not in {401, 403, 404}
    assert (access.opened(run.key, token, scope) is not None) == is_let_in
    assert is_let_in == (kind in {"good", "of this run", "of a superuser"})


def test_a_token_of_a_user_who_left_opens_nothing(run: Run) -> None:
    api = Api(make_token())
    User.objects.update(is_active=False)
    problem(api.get(f"runs/{run.key}"), 401, "authentication_failed")


def test_a_token_is_stored_hashed() -> None:
    token = make_token()
    row = ApiToken.objects.get()
    assert token.startswith("ry_")
    stored = " ".join(str(value) for value in ApiToken.objects.values_list().get())
    assert token not in stored
    assert row.digest != token


def test_a_token_sees_only_its_project_in_the_list() -> None:
    mine, theirs = make_run(), make_run(project=make_project("theirs"))
    user = make_user("root", role=None)
    user.is_superuser = True
    user.save()
    listed = Api(make_token(user=user)).get("runs").json()["runs"]
    assert [each["run"] for each in listed] == [mine.key]
    bound = Api(make_token(user=user, project=theirs.project, run=theirs)).get("runs").json()["runs"]
    assert [each["run"] for each in bound] == [theirs.key]
    problem(Api(make_token([Scope.SUBMIT])).get("runs"), 403, "forbidden")


def test_a_bound_or_scopeless_token_launches_nothing(run: Run) -> None:
    before = row_counts()
    body = {"preset": "reverse-text-rl"}
    problem(Api(make_token([Scope.READ])).post("runs", body), 403, "forbidden")
    problem(Api(make_token(run=run)).post("runs", body), 403, "forbidden")
    problem(Api(make_token(role=Role.VIEWER)).post("runs", body), 404, "not_found")
    problem(Api(make_token()).post("runs", body | {"project": "theirs"}), 404, "not_found")
    assert row_counts()["rollouts_run"] == before["rollouts_run"]


def test_a_session_reads_freely_and_writes_only_with_the_csrf_token(run: Run) -> None:
    user = make_user("ada")
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    assert client.get(f"/api/v1/runs/{run.key}").status_code == 200
    path = f"/api/v1/runs/{run.key}/stop"
    for content_type in ("application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        refused = client.post(path, data=b"{}", content_type=content_type)
        assert "CSRF" in problem(refused, 403, "permission_denied")["detail"]
    assert Run.objects.get().state == "running"
    client.get("/login/")
    token = "x" * 32
    client.cookies["rollyard_csrf"] = token
    headers = {"X-CSRFToken": token}
    unfit = client.post(path, data=b'{"reason": 5}', content_type="application/json", headers=headers)
    assert "reason" in problem(unfit, 422, "invalid")["detail"], "the body was read, not only checked"
    answered = client.post(path, data=b"{}", content_type="application/json", headers=headers)
    assert answered.status_code == 200
    assert msgspec.json.decode(answered.content)["state"] == "stopping"


def test_a_session_of_a_viewer_may_not_write(run: Run) -> None:
    client = Client()
    client.force_login(make_user("vera", role=Role.VIEWER))
    problem(client.post(f"/api/v1/runs/{run.key}/stop"), 403, "forbidden")
    client.force_login(make_user("nobody", role=None))
    problem(client.post(f"/api/v1/runs/{run.key}/stop"), 404, "not_found")
    problem(client.get(f"/api/v1/runs/{run.key}"), 404, "not_found")


def test_fields_that_only_the_server_sets_cannot_be_sent() -> None:
    api = Api(make_token())
    run = story.launch()
    group = msgspec.to_builtins(story.scored("a")) | {"state": "trained"}
    problem(api.post(f"runs/{run.key}/groups", group), 422, "invalid")
    problem(api.post("runs", {"preset": "reverse-text-rl", "state": "finished"}), 422, "invalid")
    problem(api.post(f"runs/{run.key}/trainer", {"epoch": 7}), 422, "invalid")


@pytest.mark.parametrize("path", ["nowhere", "a/b/", "runs/x/y/z", "%0d%0aX:1", "a%0ab", "%00"])
def test_an_address_that_is_none_is_answered_as_a_problem(path: str) -> None:
    assert "no path" in problem(Api().get(path), 404, "not_found")["detail"]


def test_who_is_in_several_projects_names_one(client: Client) -> None:
    ada = make_user("ada", role=Role.OPERATOR)
    client.force_login(ada)
    body = {"preset": "reverse-text-rl"}
    make_project("lab").memberships.create(user=ada, role=Role.OPERATOR)
    refused = problem(client.post("/api/v1/runs", body, content_type="application/json"), 422, "invalid")
    assert "lab" in refused["fields"]["project"]
    assert not Run.objects.exists()
