"""The administration site: every page renders, lists never load payloads, and the store is not written by hand."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from rollouts.admin import MAX_COUNTED, BoundedPaginator, StoreAdmin, scope
from rollouts.admin.scope import path_to_project
from rollouts.models import (
    ApiToken,
    Event,
    GroupTokens,
    Label,
    Membership,
    Project,
    Role,
    Run,
    ScoredGroup,
    Trust,
)
from rollouts.services.curation import queues, turns
from rollouts.services.curation.filters import QueueFilter
from tests.factories import make_project, make_user, somebody
from tests.rollouts import story
from tests.rollouts.curation.administration import address, make_world, staff

pytestmark = pytest.mark.django_db

MODELS = list(apps.get_app_config("rollouts").get_models())
REGISTERED = [model for model in MODELS if admin.site.is_registered(model)]
STORE = [model for model in REGISTERED if isinstance(admin.site.get_model_admin(model), StoreAdmin)]
EDITABLE = [Project, Membership]
PAYLOADS = {
    "config",
    "config_origins",
    "messages",
    "earlier_branches",
    "problem",
    "record",
    "branch_lengths",
    "files",
    "tools",
    "metrics",
    "error",
    "spans",
    "advantages",
    "args",
    "token_ids",
    "loss_mask",
    "inference_logprobs",
    "ref_logprobs",
    "extras",
    "trainer_logprobs",
    "mask_reasons",
    "texts",
    "row",
    "statistics",
    "manifest",
}
LIST_QUERIES = {"run": 7, "scoredgroup": 5, "apitoken": 6, "membership": 6, "project": 5}
"""Beyond the usual four: the session, its user, the count, the rows."""


@pytest.fixture(scope="module")
def world(django_db_setup: None, django_db_blocker: Any) -> Iterator[Run]:
    """One world for all tests: each takes back what it wrote."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield make_world()
        transaction.set_rollback(True)


@pytest.fixture
def client(world: Run) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def payload_columns(sql: str) -> set[str]:
    """Payload columns that a query selects as they are; their lengths do not count."""
    selected = sql.split(" FROM ")[0]
    return {name for name in PAYLOADS if f'."{name}"' in selected.replace('LENGTH("rollouts_grouptokens"."', "(")}


def test_every_model_is_registered() -> None:
    assert MODELS == REGISTERED
    assert set(MODELS) - set(STORE) == set(EDITABLE)


def test_lists_render_in_few_queries_without_loading_payloads(client: Client) -> None:
    for model in MODELS:
        assert model._default_manager.count() >= 3
        with CaptureQueriesContext(connection) as seen:
            answer = client.get(address(model, "changelist"))
        assert answer.status_code == 200
        assert answer.content.count(b'<th class="field') + answer.content.count(b'<td class="action') >= 3
        queries = [query["sql"] for query in seen.captured_queries if "SAVEPOINT" not in query["sql"]]
        assert len(queries) == LIST_QUERIES.get(str(model._meta.model_name), 4), "\n".join(queries)
        assert [payload_columns(sql) for sql in queries if payload_columns(sql)] == []


def test_lists_are_searched(client: Client, world: Run) -> None:
    for model in MODELS:
        answer = client.get(address(model, "changelist"), {"q": world.key})
        assert answer.status_code == 200
        assert b'name="q"' in answer.content


def test_the_page_of_every_row_renders(client: Client) -> None:
    for model in MODELS:
        row = model._default_manager.order_by("-pk").first()
        assert row is not None
        answer = client.get(address(model, "change", row.pk))
        assert answer.status_code == 200
        assert (b'name="_save"' in answer.content) == (model in EDITABLE)


def test_rows_of_the_store_are_not_written_by_hand(client: Client) -> None:
    for model in STORE:
        row = model._default_manager.first()
        assert row is not None
        before = list(model._default_manager.order_by("pk").values_list())
        assert client.get(address(model, "add")).status_code == 403
        assert client.post(address(model, "add"), {}).status_code == 403
        assert client.post(address(model, "change", row.pk), {"state": "failed"}).status_code == 403
        if model is not ApiToken:
            assert client.post(address(model, "delete", row.pk), {"post": "yes"}).status_code == 403
            everything = {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"}
            client.post(address(model, "changelist"), everything)
        assert list(model._default_manager.order_by("pk").values_list()) == before


def test_the_page_of_token_arrays_tells_their_sizes_and_never_reads_them(client: Client) -> None:
    row = GroupTokens.objects.order_by("pk").defer("token_ids").first()
    assert row is not None
    with CaptureQueriesContext(connection) as seen:
        answer = client.get(address(GroupTokens, "change", row.pk))
    assert b"16" in answer.content
    assert [payload_columns(query["sql"]) for query in seen.captured_queries if payload_columns(query["sql"])] == []


def test_a_token_is_revoked_but_never_shown(client: Client) -> None:
    token = ApiToken.objects.first()
    assert token is not None
    page = client.get(address(ApiToken, "change", token.pk)).content.decode()
    assert token.name in page
    assert token.digest not in page.replace(address(ApiToken, "change", token.pk), "").replace(
        address(ApiToken, "delete", token.pk), ""
    ).replace(address(ApiToken, "history", token.pk), "")
    client.post(address(ApiToken, "delete", token.pk), {"post": "yes"})
    assert not ApiToken.objects.filter(pk=token.pk).exists()


def test_a_project_is_made_with_its_members(client: Client) -> None:
    user = User.objects.get(username="root")
    form = {
        "name": "New",
        "slug": "new",
        "memberships-TOTAL_FORMS": "1",
        "memberships-INITIAL_FORMS": "0",
        "memberships-0-user": str(user.pk),
        "memberships-0-role": "admin",
    }
    assert client.post(address(Project, "add"), form).status_code == 302
    assert Membership.objects.get(project__slug="new").user == user


def test_lists_are_filtered(client: Client) -> None:
    query = {Run: {"state__exact": "running"}, Event: {"object_kind": "batch"}, ApiToken: {"created__year": "2026"}}
    for model, wanted in query.items():
        assert client.get(address(model, "changelist"), wanted).status_code == 200


def test_who_is_no_staff_sees_nothing() -> None:
    client = Client()
    client.force_login(User.objects.create_user("ada"))
    assert client.get(address(Run, "changelist")).status_code == 302
    client.force_login(User.objects.create_user("staff", is_staff=True))
    assert client.get(address(Run, "changelist")).status_code == 403


def test_a_list_counts_no_further_than_it_must(world: Run) -> None:
    paginator = BoundedPaginator(Event.objects.order_by("-id"), 50)
    with CaptureQueriesContext(connection) as seen:
        assert 0 < paginator.count < MAX_COUNTED
    assert f"LIMIT {MAX_COUNTED}" in seen.captured_queries[0]["sql"]


def test_an_account_is_closed_and_not_deleted(client: Client) -> None:
    ada = User.objects.create_user("ada", password="a long one indeed")
    assert client.post(reverse("admin:auth_user_delete", args=[ada.pk]), {"post": "yes"}).status_code == 403
    form = {"username": "ada", "date_joined_0": "2026-01-01", "date_joined_1": "00:00:00"}
    assert client.post(reverse("admin:auth_user_change", args=[ada.pk]), form).status_code == 302
    ada.refresh_from_db()
    assert not ada.is_active
    assert LogEntry.objects.get().object_id == str(ada.pk)


def test_what_is_not_the_record_may_be_deleted(client: Client) -> None:
    group, project = Group.objects.create(name="friends"), make_project("over")
    assert client.post(reverse("admin:auth_group_delete", args=[group.pk]), {"post": "yes"}).status_code == 302
    assert client.post(address(Project, "delete", project.pk), {"post": "yes"}).status_code == 302
    assert not Group.objects.exists()
    assert not Project.objects.filter(pk=project.pk).exists()


@pytest.mark.slow
def test_staff_sees_the_rows_of_its_own_projects_and_no_others(world: Run) -> None:
    elsewhere = make_project("elsewhere")
    foreign, own = staff(Role.ADMIN, elsewhere), staff(Role.ADMIN, world.project)
    ours = [model for model in admin.site._registry if model._meta.app_label == "rollouts"]
    shown = 0
    for model in ours:
        for row in model._default_manager.order_by("pk")[:3]:
            way = path_to_project(model)
            projects = model._default_manager.filter(pk=row.pk).values_list(way, flat=True) if way else []
            if elsewhere.pk in projects:
                continue
            mine = world.project_id in projects
            for page in ("change", "history", "delete"):
                if page == "delete" and not mine:
                    continue
                answer = own.get(address(model, page, row.pk))
                wanted = {200, 403} if mine else {302, 403}  # 302: there is no such row
                assert answer.status_code in wanted, (model, page, answer.status_code)
            if page_of_others := foreign.get(address(model, "change", row.pk)):
                assert page_of_others.status_code in {302, 403}, model
            shown += mine
        listed = foreign.get(address(model, "changelist"))
        assert listed.status_code == 200
        own_project = int(model in {Project, Membership})
        assert listed.context["cl"].result_count == own_project, model
    assert shown > len(ours)


def test_only_an_administrator_of_a_project_changes_who_is_in_it(world: Run) -> None:
    membership = Membership.objects.get(user=make_user("olga", role=Role.VIEWER, project=world.project))
    change = {"user": membership.user_id, "project": world.project_id, "role": "admin"}
    for role, status in ((Role.OPERATOR, 403), (Role.ADMIN, 302)):
        answer = staff(role, world.project).post(address(Membership, "change", membership.pk), change)
        assert answer.status_code == status
    membership.refresh_from_db()
    assert membership.role == "admin"
    elsewhere = make_project("elsewhere")
    moved = staff(Role.ADMIN, make_project("third")).post(
        address(Membership, "add"), {**change, "project": elsewhere.pk, "user": membership.user_id}
    )
    assert moved.status_code == 200, "a project that is none of one's own is no choice"
    assert not elsewhere.memberships.exists()


def test_accounts_and_trust_are_for_superusers(world: Run) -> None:
    client = staff(Role.ADMIN, world.project)
    for path in (reverse("admin:auth_user_changelist"), reverse("admin:auth_user_add")):
        assert client.get(path).status_code == 403
    assert client.get(address(Trust, "changelist")).context["cl"].result_count == 0


def test_behind_the_last_row_that_is_paged_through_a_list_goes_on(
    client: Client, world: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scope, "MAX_COUNTED", 4)
    monkeypatch.setattr(StoreAdmin, "list_per_page", 2)
    first = client.get(address(Event, "changelist"))
    assert b"Older ones" not in first.content
    last = client.get(address(Event, "changelist"), {"p": "2"})
    assert b"Older ones" in last.content
    behind = client.get(address(Event, "changelist") + last.context["cl"].older_query())
    seen = [row.pk for answer in (first, last, behind) for row in answer.context["cl"].result_list]
    assert seen == list(Event.objects.order_by("-id").values_list("pk", flat=True)[:6])


GROUP_FILTERS = {
    "reward": ".5 to .75",
    "signal": "differ",
    "errors": "none failed",
    "verdict": "accept",
    "environment": "reverse_text",
    "lag": "0",
}


def test_groups_are_filtered_by_what_became_of_them(client: Client, world: Run) -> None:
    for name, value in GROUP_FILTERS.items():
        with CaptureQueriesContext(connection) as seen:
            answer = client.get(address(ScoredGroup, "changelist"), {name: value, "state__exact": "trained"})
        found = [row.pk for row in answer.context["cl"].result_list]
        assert found, f"{name}={value} finds nothing"
        assert len([query for query in seen.captured_queries if "SAVEPOINT" not in query["sql"]]) <= 6
        nothing = {"reward": "below 0", "signal": "all equal", "errors": "some rollout failed", "verdict": "reject"}
        if name in nothing:
            other = client.get(address(ScoredGroup, "changelist"), {name: nothing[name], "state__exact": "trained"})
            assert [row.pk for row in other.context["cl"].result_list if row.pk in found] == []


def test_the_words_of_a_blind_queue_are_shown_once_it_is_closed(client: Client) -> None:
    run = story.launch()
    story.submit(run, [story.scored("hidden")], actor="api:t")
    queue = queues.create(run.project, name="blind", actor="user:cy", is_blind=True, filter=QueueFilter(run=run.key))
    turn = turns.take(queue, somebody("cy"))
    assert turn is not None
    label = turns.answer(turn, user=somebody("cy"), actor="user:cy", verdict="reject")
    listed = {Label: {"q": run.key}, ScoredGroup: {"verdict": "reject", "q": run.key}}

    def shown() -> list[bool]:
        lists = [client.get(address(model, "changelist"), query).context["cl"] for model, query in listed.items()]
        pages = [client.get(address(type(row), "change", row.pk)).content.decode() for row in (label, turn)]
        return [len(each.result_list) == 1 for each in lists] + [str(label) in page for page in pages]

    assert shown() == [False] * 4
    queues.close(queue)
    assert shown() == [True, True, True, False]  # the turn names its word, and leaves it to the page of that


def test_the_page_of_a_group_shows_what_was_said_as_text(client: Client, world: Run) -> None:
    group = ScoredGroup.objects.filter(rollouts__messages__len__gt=0).first() or world.groups.first()
    assert group is not None
    page = client.get(address(ScoredGroup, "change", group.pk)).content.decode()
    assert "Conversation" in page
    assert reverse("group", args=[group.run.key, group.key]) in page


def test_the_page_of_a_group_begins_with_what_people_read_and_folds_the_columns(client: Client, world: Run) -> None:
    page = client.get(address(ScoredGroup, "change", world.groups.earliest("pk").pk)).content.decode()
    read, stored = page.index('field-reward"'), page.index("As stored")
    assert read < stored < page.index("Conversation")
    assert page.index('field-reason_code"') > stored
