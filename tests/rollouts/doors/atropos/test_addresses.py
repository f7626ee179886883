"""An Atropos address has somebody who answers for it, an end, and a last use; looking at it changes nothing."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from rollouts.doors.atropos import lookup
from rollouts.errors import Invalid
from rollouts.models import Address, Attempt, Event, Membership, Role, Run
from rollouts.services.runs import addresses, life
from rollouts.states import RunState
from tests import store
from tests.factories import make_project, make_run, make_user
from tests.rollouts.doors.atropos.api import Api, item

pytestmark = pytest.mark.django_db(transaction=True)


def owned(role: Role | None = Role.OPERATOR) -> tuple[Api, User]:
    """A run whose address somebody made who now has this role in its project."""
    owner = make_user("olga", role=role)
    run = make_run(preset="external-trainer", state=RunState.STARTING, user=owner, epoch=0, live_version=-1)
    return Api(run), owner


def check_closed(api: Api, word: str) -> None:
    """Nothing is told, and nothing stored; the answer says who mends it, in the protocol's shape."""
    for method, path in (("GET", "/"), ("GET", "/info"), ("GET", "/batch"), ("POST", "/scored_data"), ("GET", "/docs")):
        answer = api.request(method, path, json=item() if method == "POST" else None)
        assert answer.status_code == 403, (path, answer.text)
        assert word in answer.json()["detail"], path
        assert "Connect" in answer.json()["detail"], path


def test_a_run_is_made_with_an_address_of_its_creator_that_ends() -> None:
    api, owner = owned()
    assert api.run.address.owner == owner
    left = api.run.address.expires_at - timezone.now()
    assert timedelta(days=29) < left <= timedelta(days=30)
    assert api.get("/info")


def test_an_address_opens_nothing_after_its_end_until_it_is_renewed() -> None:
    api, owner = owned()
    Address.objects.update(expires_at=timezone.now())
    check_closed(api, "expired")
    addresses.renew(api.run, owner=owner, actor="user:olga", days=1)
    assert api.get("/info")
    assert "renewed for 1 days" in str(Event.objects.order_by("-id")[0].reason)


@pytest.mark.parametrize("change", ["deactivated", "membership ended", "role lowered", "deleted"])
def test_an_address_of_somebody_who_may_not_operate_the_run_any_more_opens_nothing(change: str) -> None:
    api, owner = owned()
    assert api.get("/info")
    if change == "deactivated":
        User.objects.filter(pk=owner.pk).update(is_active=False)
    elif change == "membership ended":
        Membership.objects.filter(user=owner).delete()
    elif change == "role lowered":
        Membership.objects.filter(user=owner).update(role=Role.CURATOR)
    else:
        with store.beyond_rights():  # the product closes accounts and deletes none
            owner.delete()
    check_closed(api, "answers for")
    addresses.renew(api.run, owner=make_user("otto"), actor="user:otto")
    assert api.get("/info"), "the same address, in another's name"


def test_an_address_of_a_superuser_needs_no_membership() -> None:
    api, owner = owned(role=None)
    check_closed(api, "answers for")
    User.objects.filter(pk=owner.pk).update(is_superuser=True)
    assert api.get("/info")


def test_a_membership_in_another_project_opens_nothing() -> None:
    api, owner = owned(role=None)
    Membership.objects.create(user=owner, project=make_project("other"), role=Role.ADMIN)
    check_closed(api, "answers for")


def test_a_body_under_a_closed_address_is_not_looked_at() -> None:
    api, owner = owned()
    api.submit()
    User.objects.filter(pk=owner.pk).update(is_active=False)
    lookup._found_at.clear()  # a minute later
    broken = {"content": b"not gzip at all", "headers": {"content-encoding": "gzip"}}
    assert api.request("POST", "/scored_data", **broken).status_code == 403


def test_its_last_use_is_noted_once_a_minute_and_no_other_request_writes() -> None:
    api, _ = owned()
    assert api.run.address.used_at is None
    api.get("/info")
    used_at = Address.objects.get().used_at
    assert used_at is not None
    with CaptureQueriesContext(connection) as queries:
        lookup.find(api.run.address.key)
    assert queries.captured_queries == [], "one query, of a cursor of its own"
    assert Address.objects.get().used_at == used_at
    earlier = timezone.now() - timedelta(seconds=61)
    Address.objects.update(used_at=earlier)
    api.get("/info")
    assert Address.objects.get().used_at > earlier


def test_looking_at_an_address_resets_nothing_and_says_what_does() -> None:
    api, _ = owned()
    api.register()
    refused = api.request("GET", "/reset_data")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    assert "POST /reset_data" in refused.json()["detail"]
    assert Attempt.objects.get().closed_at is None
    assert api.request("POST", "/reset_data").text == "Reset successful"
    assert Attempt.objects.get().closed_at is not None


def test_an_address_for_old_clients_resets_by_get() -> None:
    api, owner = owned()
    address = addresses.change(api.run, owner=owner, actor="user:olga", resets_on_get=True)
    api.base = api.base.rpartition("/")[0] + f"/{address.key}"
    api.register()
    assert api.request("GET", "/reset_data").text == "Reset successful"
    assert Attempt.objects.get().closed_at is not None


@pytest.mark.parametrize("days", [0, -1, 366])
def test_an_address_lasts_a_year_at_most(days: int) -> None:
    api, owner = owned()
    before = Address.objects.get()
    for hold in (addresses.change, addresses.renew):
        with pytest.raises(Invalid, match="1 to 365 days"):
            hold(api.run, owner=owner, actor="user:olga", days=days)
    assert Address.objects.get().key == before.key


def test_a_supervised_run_has_no_address() -> None:
    run = make_run(preset="reverse-text-sft")
    assert not Address.objects.filter(run=run).exists()
    with pytest.raises(Invalid, match="supervised"):
        addresses.renew(run, owner=make_user("olga"), actor="user:olga")


def test_a_run_that_is_stopped_and_a_run_without_a_creator_are_closed() -> None:
    api, _ = owned()
    life.request_stop(api.run, actor="user:olga")
    assert api.request("POST", "/scored_data", json=item()).status_code == 410
    with store.beyond_rights():
        Run.objects.update(created_by=None)
        Address.objects.update(owner=None)
    check_closed(api, "answers for")
