"""Credentials that are not, no longer or not here valid, and keys that are used twice, over the lanes of servers."""

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from rollouts.models import ApiToken, Role, Run, Scope, ScoredGroup
from rollouts.services.runs import addresses
from tests import store
from tests.factories import make_project, make_user, somebody
from tests.hostile.application import JSON, Answer, Target, call, check_refusal, check_whole
from tests.hostile.case import good
from tests.hostile.wires import Wire, json_of, written
from tests.rollouts.api import make_token, row_counts
from tests.rollouts.doors.atropos.api import registration

# Slow, as the fast lane runs tests in any order, and after these the rows are gone that others of the package share.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
GROUP, ITEM = json_of(good()), written(Wire.ATROPOS, good()) or b""


@pytest.fixture
def aimed() -> Target:
    """Runs of this test's own: it changes who may do what."""
    return Target()


def expired(target: Target) -> str:
    token = make_token(user=make_user("eve"))
    with store.beyond_rights():
        ApiToken.objects.filter(user__username="eve").update(expiry=timezone.now() - timedelta(seconds=1))
    return token


def revoked(target: Target) -> str:
    token = make_token(user=make_user("bob"), run=target.run)
    ApiToken.objects.filter(user__username="bob").delete()
    return token


def of_who_left(target: Target) -> str:
    user = make_user("zoe")
    token = make_token(user=user)
    user.is_active = False
    user.save()
    return token


def of_another_project(target: Target) -> str:
    return make_token(project=make_project("theirs"), role=Role.ADMIN)


def of_another_run(target: Target) -> str:
    return make_token(run=target.spare)


def without_the_scopes(target: Target) -> str:
    return make_token([Scope.READ, Scope.LAUNCH])


def of_a_viewer(target: Target) -> str:
    return make_token(role=Role.VIEWER)


def with_another_secret(target: Target) -> str:
    """The part that is looked up is right, the part that is secret is not."""
    return target.token[:-1] + ("a" if target.token[-1] != "a" else "b")


def cut_short(target: Target) -> str:
    return target.token[:-1]


TOKENS: dict[Callable[[Target], str], int] = {
    expired: 401,
    revoked: 401,
    of_who_left: 401,
    with_another_secret: 401,
    cut_short: 401,
    of_another_project: 404,
    of_another_run: 404,
    without_the_scopes: 403,
    of_a_viewer: 403,
}
CALLS = [
    ("POST", "groups", GROUP),
    ("GET", "batches/0", b""),
    ("POST", "trainer", b"{}"),
    ("POST", "work/claim", b'{"holder": "h"}'),
]


@pytest.mark.parametrize("make", TOKENS, ids=lambda make: make.__name__)
def test_a_token_that_does_not_fit_opens_nothing(aimed: Target, make: Callable[[Target], str]) -> None:
    token = make(aimed)
    before = row_counts()
    for method, path, body in CALLS:
        answer = aimed.native(method, path, body, authorization=f"Token {token}", rollyard_epoch="1")
        check_refusal(answer)
        assert answer.status == TOKENS[make], (path, answer)
    after = row_counts()
    before["rollouts_apitoken"] -= make is expired  # whoever shows one that expired has it deleted
    assert after == before


@pytest.mark.parametrize("epoch", [0, 4, 6, 999_999_999])
def test_a_trainer_of_another_epoch_changes_nothing(aimed: Target, epoch: int) -> None:
    """Older ones were replaced; a newer one was never registered."""
    Run.objects.filter(pk=aimed.run.pk).update(epoch=5)
    before = row_counts()
    files = f'"path": "{aimed.run.directory}/weights/step_1", "manifest_sha256": "{"a" * 64}", "size_bytes": 1'
    calls = [
        ("GET", "batches/0", ""),
        ("POST", "steps/0", '{"metrics": {"loss": 1.0}}'),
        ("POST", "policy-versions", f'{{"version": 1, {files}}}'),
        ("POST", "checkpoints", f'{{"step": 1, {files.replace("weights", "checkpoints")}}}'),
        ("POST", "trainer/finish", ""),
    ]
    for method, path, body in calls:
        answer = aimed.native(method, path, body.encode(), rollyard_epoch=str(epoch))
        check_refusal(answer)
        assert (answer.status, answer.json()["code"]) == (409, "stale_epoch"), path
    assert row_counts() == before


OTHER_BODIES = {
    "another problem": good() | {"problem_key": "dog"},
    "another environment": good() | {"environment": "other"},
    "another size": good(rewards=(1.0, 0.0, 0.5)),
    "other tokens": json.loads(GROUP.replace(b"67", b"66")),
    "other masks": json.loads(GROUP.replace(b"[0, 0, 1, 1]", b"[0, 1, 1, 1]")),
    "other logprobs": json.loads(GROUP.replace(b"-0.25", b"-0.75")),
    "other rewards": good(rewards=(0.0, 1.0)),
}


@pytest.mark.parametrize("name", OTHER_BODIES)
def test_a_key_that_is_used_again_for_something_else_is_refused(aimed: Target, name: str) -> None:
    other = OTHER_BODIES[name]
    assert aimed.native("POST", "groups", GROUP, idempotency_key="once").status == 201
    assert aimed.native("POST", "groups", json_of(good() | {"key": "mine"})).status == 201
    before = row_counts()
    for answer in (
        aimed.native("POST", "groups", json_of(other), idempotency_key="once"),
        aimed.native("POST", "groups", json_of(other | {"key": "mine"})),
        aimed.native("POST", "groups", json_of([good() | {"key": "new"}, other | {"key": "mine"}])),
    ):
        check_refusal(answer)
        assert (answer.status, answer.json()["code"]) == (409, "conflict")
    assert row_counts() == before


@pytest.mark.parametrize("wire", [Wire.JSON, Wire.MESSAGEPACK, Wire.PACKED])
def test_of_fifty_requests_with_one_key_at_once_one_is_stored(aimed: Target, wire: Wire) -> None:
    body = written(wire, good()) or b""
    headers = {**aimed.credentials, "content-type": wire.content_type, "idempotency-key": "once"}

    async def all_at_once() -> list[Answer | None]:
        path = f"/api/v1/runs/{aimed.run.key}/groups"
        return await asyncio.gather(*(call("POST", path, headers, [body]) for _ in range(50)))

    answers = aimed.loop.run(all_at_once())
    assert {(each.status, each.body) for each in answers if each} == {(201, answers[0].body if answers[0] else b"")}
    group = ScoredGroup.objects.get(run=aimed.run)
    check_whole(group)
    assert group.rollout_count == 2


def test_of_fifty_different_groups_with_one_key_at_once_one_is_stored(aimed: Target) -> None:
    headers = {**aimed.credentials, "content-type": "application/json", "idempotency-key": "once"}
    bodies = [json_of(good() | {"problem_key": f"problem {number}"}) for number in range(50)]

    async def all_at_once() -> list[Answer | None]:
        path = f"/api/v1/runs/{aimed.run.key}/groups"
        return await asyncio.gather(*(call("POST", path, headers, [body]) for body in bodies))

    statuses = sorted(each.status for each in aimed.loop.run(all_at_once()) if each)
    assert statuses == [201] + [409] * 49
    check_whole(ScoredGroup.objects.get(run=aimed.run))


def test_a_key_of_the_other_api_that_was_rotated_opens_nothing(aimed: Target) -> None:
    old = aimed.external.address.key
    assert aimed.atropos("POST", "scored_data", ITEM).status == 200
    aimed.external.address = addresses.change(aimed.external, owner=somebody(), actor="user:ada")
    before = row_counts()
    for method, path, body in ATROPOS_CALLS:
        answer = aimed.ask(method, f"/atropos/{old}/{path}", body, **JSON)
        assert (answer.status, answer.json()) == (404, {"detail": "Not Found"})
    assert row_counts() == before
    assert aimed.atropos("POST", "scored_data", ITEM).status == 200


ATROPOS_CALLS = [
    ("POST", "scored_data", ITEM),
    ("POST", "scored_data_list", b"[" + ITEM + b"]"),
    ("POST", "scored_data_list", b"[]"),
    ("POST", "register", json_of(registration())),
    ("GET", "batch", b""),
    ("GET", "reset_data", b""),
    ("GET", "latest_example", b""),
    ("GET", "status-env", b'{"env_id": 0}'),
]


@pytest.mark.parametrize(
    "key", ["x" * 32, "x" * 20, "x" * 64, "x" * 65, "é" * 20, "a%00" * 10, "%2a" * 20, "_" * 24, ""]
)
def test_a_key_of_the_other_api_that_nobody_has_opens_nothing(aimed: Target, key: str) -> None:
    before = row_counts()
    for method, path, body in ATROPOS_CALLS:
        answer = aimed.ask(method, f"/atropos/{key}/{path}", body, **JSON)
        assert (answer.status, answer.json()) == (404, {"detail": "Not Found"}), path
    assert row_counts() == before


def test_the_public_key_of_a_run_is_no_credential(aimed: Target) -> None:
    before = row_counts()
    for key in (aimed.external.key, aimed.run.key):
        for method, path, body in ATROPOS_CALLS:
            answer = aimed.ask(method, f"/atropos/{key}/{path}", body, **JSON)
            assert answer.status == 404, path
    assert row_counts() == before
