"""The administration site: every page renders, lists never load payloads, and the store is not written by hand."""

from typing import Any

import msgspec
import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.db.models import Model, QuerySet
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from environments.types import Problem
from rollouts.admin import MAX_COUNTED, BoundedPaginator, StoreAdmin, scope
from rollouts.admin import curation as admin_of_curation
from rollouts.admin.scope import path_to_project
from rollouts.models import (
    ApiToken,
    Attempt,
    Delivery,
    EnvironmentClient,
    EnvironmentSource,
    Event,
    GroupTokens,
    KeptPool,
    Label,
    Membership,
    PlacementKind,
    Project,
    ReplicaKind,
    Role,
    Run,
    RunDataset,
    ScoredGroup,
    Trust,
    Verb,
    WorkerJob,
)
from rollouts.services import endpoints, trust
from rollouts.services.batches import forming, replays
from rollouts.services.curation import acts, labels, queues, turns
from rollouts.services.curation.filters import QueueFilter
from rollouts.services.datasets import exports, making
from rollouts.services.datasets.choosing import Recipe
from rollouts.services.groups import loads
from rollouts.services.outside import sessions
from rollouts.services.runs import checkpoints, placements, replica_loads, replicas
from rollouts.services.runs.placements import Wish
from tests.factories import make_project, make_trial, make_user, somebody
from tests.model_files import make_warm
from tests.rollouts import story
from tests.rollouts.api import make_token
from tests.rollouts.runs.test_runs import checkpoint
from trainers.wire import TrainingBatch

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


def serve_attempt(run: Run, number: int) -> None:
    """A closed attempt of a trainer that speaks the Atropos protocol, with an environment and a batch it got."""
    now = timezone.now()
    attempt = Attempt.objects.create(
        run=run,
        number=number,
        batch_size=4,
        max_token_len=64,
        save_checkpoint_interval=0,
        starting_step=0,
        num_steps=9,
        state="closed",
        closed_at=now,
    )
    EnvironmentClient.objects.create(
        attempt=attempt,
        index=0,
        environment=run.environments.get(),
        wandb_name="words_0",
        max_token_length=64,
        weight=1.0,
        group_size=2,
        batch_size=4,
    )
    Delivery.objects.create(batch=run.batches.get(step=number), attempt=attempt, expires_at=now, sent_at=now)


@pytest.fixture
def world() -> Run:
    """At least three rows in every table."""
    run, epoch = story.train(
        evaluation={"problems": 4},
        max_steps=9,
        algorithm__max_async_level=3,
        trainer__keep_weights=6,
        environments=[{"name": "reverse_text", "pools": {}}],
    )
    for each in story.claim(run, 10)[4:]:
        story.settle(each)
    for number in range(3):
        loads.report(run, holder=f"host:{number}", sessions=9, queued=0, asking=5, scoring=1, tokens=4_000)
    assert placements.promise(run, "gpu-box", [Wish(PlacementKind.GPU, ["0", "1", "2"], 3)]) is None
    for name in ("a", "b", "c"):
        KeptPool.objects.create(name=name, minimum=0, maximum=1)
        WorkerJob.objects.create(token=f"worker-{name}", pool=name, number="7", state="running")
    for step in range(3):
        delivery = forming.fetch(run, epoch=epoch, step=step)
        assert delivery is not None
        rollout = msgspec.msgpack.decode(delivery.body, type=TrainingBatch).rollouts[0]
        story.ack(run, epoch, step, delivery.sha256, [story.seen(rollout)], **{"loss/mean": 1.0})
        story.announce(run, epoch, step + 1)
        checkpoints.add_checkpoint(run, epoch=epoch, checkpoint=checkpoint(run, step))
        server = replicas.create(run, kind=ReplicaKind.INFERENCE, slot=step, launcher="local")
        replica_loads.report(server, running=1, waiting=0, cache_share=0.5, tokens=9)
    for number in range(3):
        make_trial(run)
        EnvironmentSource.objects.create(name="words", version=str(number), sha256="0" * 64, files={"words.py": "1"})
        sessions.open_session(
            run,
            Problem(key="p", messages=[]),
            environment="agent",
            group=f"g{number}",
            group_size=1,
            deadline_s=60,
            owner=somebody(),
            actor="api:agent",
        )
    for row in ScoredGroup.objects.filter(settled_at__isnull=False)[:3]:
        labels.say(row, user=somebody(), actor="user:somebody", verdict="accept")
        acts.perform(run, Verb.EXCLUDE, [row.pk], user=somebody(), actor="user:somebody")
    for number in range(3):
        queue = queues.create(run.project, name=f"queue-{number}", actor="user:somebody")
        turns.take(queue, somebody())
        # Of groups that nobody withholds: each has a member at least.
        version = making.make(
            run.project, name=f"set-{number}", form="examples", recipe=Recipe(runs=[run.key]), actor="user:somebody"
        )
        exports.request(version, form="sft", user=None, actor="user:somebody")
        RunDataset.objects.create(run=story.launch(), version=version)
    for step in range(3):
        replays.order(story.launch(), source=run, first_step=step, last_step=step, actor="user:ada")
        serve_attempt(run, step)
    for number in range(3):
        story.launch(evaluation={"problems": 1})
        make_project(f"project-{number}")
        make_warm(make_project(f"project-{number}"))
        make_token(project=make_project(f"project-{number}"), run=run if number else None)
        trust.allow("loss", f"losses.number_{number}", actor="user:root")
        endpoints.add(
            name=f"judge-{number}", base_url="https://a.example/v1", model="m", is_for_all=True, actor="user:root"
        )
    return run


@pytest.fixture
def client(world: Run) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def address(model: type[Model], page: str, *args: Any) -> str:
    return reverse(f"admin:rollouts_{model._meta.model_name}_{page}", args=args)


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


def staff(role: Role, project: Project) -> Client:
    """Signed in as somebody who may do everything in the administration site, but has a role in one project only."""
    user = make_user(f"staff-{role}-{project.slug}", role=role, project=project)
    user.is_staff = True
    user.save()
    user.user_permissions.set(Permission.objects.all())
    client = Client()
    client.force_login(user)
    return client


def chosen(rows: QuerySet[ScoredGroup]) -> list[int]:
    return list(rows.values_list("pk", flat=True))


@pytest.mark.parametrize(("role", "changed"), [(Role.CURATOR, 2), (Role.VIEWER, 0)])
def test_a_curator_acts_on_the_groups_of_own_projects_and_a_viewer_on_none(role: Role, changed: int) -> None:
    own, foreign = story.launch(), story.launch(project=make_project("elsewhere"))
    for run in (own, foreign):
        story.submit(run, [story.scored("a"), story.scored("b")], actor="api:t")
    client = staff(role, own.project)
    form = {"action": "reject_groups", "_selected_action": chosen(ScoredGroup.objects.all())}
    client.post(address(ScoredGroup, "changelist"), form)
    rejected = ScoredGroup.objects.filter(state="rejected")
    assert [row.run for row in rejected] == [own] * changed
    client.post(address(ScoredGroup, "changelist"), form | {"action": "restore_groups"})
    assert not ScoredGroup.objects.filter(state="rejected").exists()


@pytest.mark.parametrize(("most", "changed"), [(2, 0), (3, 3)])
def test_an_act_on_all_groups_of_a_list_is_on_no_more_than_it_counts(
    monkeypatch: pytest.MonkeyPatch, most: int, changed: int
) -> None:
    run = story.launch()
    story.submit(run, [story.scored("a"), story.scored("b"), story.scored("c")], actor="api:t")
    monkeypatch.setattr(admin_of_curation, "MAX_COUNTED", most)
    form = {"action": "reject_groups", "_selected_action": chosen(run.groups.all())[:1], "select_across": "1"}
    answer = staff(Role.CURATOR, run.project).post(address(ScoredGroup, "changelist"), form, follow=True)
    assert run.groups.filter(state="rejected").count() == changed
    assert ("Narrow it" in answer.content.decode()) == (not changed)


@pytest.mark.parametrize(
    ("action", "page", "field"), [("queue_groups", "queues", "run"), ("add_to_dataset", "datasets", "runs")]
)
def test_chosen_groups_of_a_run_are_named_in_the_form_that_an_action_leads_to(
    action: str, page: str, field: str
) -> None:
    own, other = story.launch(), story.launch()
    for run in (own, other):
        story.submit(run, [story.scored("a"), story.scored("b"), story.scored("c")], actor="api:t")
    client = staff(Role.CURATOR, own.project)
    two = chosen(own.groups.exclude(key="b"))
    form = {"action": action, "_selected_action": two}
    answer = client.post(address(ScoredGroup, "changelist"), form, follow=True)
    assert answer.resolver_match.url_name == page
    assert (answer.context["form"].values[field], answer.context["form"].values["groups"]) == (own.key, "a,c")
    story.submit(own, [story.scored("a,b")], actor="api:t")
    for groups in ([*two, *chosen(other.groups.all())], chosen(own.groups.filter(key="a,b"))):
        answer = client.post(address(ScoredGroup, "changelist"), form | {"_selected_action": groups}, follow=True)
        assert "groups of one run" in answer.content.decode()


def test_a_version_of_ones_own_is_led_to_its_export() -> None:
    run = story.launch()
    story.submit(run, [story.scored("a")], actor="api:t")
    version = making.make(run.project, name="good", form="examples", recipe=Recipe(runs=[run.key]), actor="test")
    form = {"action": "export_version", "_selected_action": [version.pk]}
    answer = staff(Role.CURATOR, run.project).post(address(type(version), "changelist"), form, follow=True)
    assert answer.context["given"]["version"] == str(version.pk)
    viewer = staff(Role.VIEWER, run.project)
    curator_elsewhere = User.objects.get(username=f"staff-viewer-{run.project.slug}")
    Membership.objects.create(user=curator_elsewhere, project=make_project("elsewhere"), role=Role.CURATOR)
    other = story.launch(project=make_project("elsewhere"))
    story.submit(other, [story.scored("a")], actor="api:t")
    own = making.make(other.project, name="good", form="examples", recipe=Recipe(runs=[other.key]), actor="test")
    for chosen_versions in ([version.pk], [version.pk, own.pk]):
        form["_selected_action"] = chosen_versions
        answer = viewer.post(address(type(version), "changelist"), form, follow=True)
        assert "in which you are a curator" in answer.content.decode()


@pytest.mark.slow
def test_staff_sees_the_rows_of_its_own_projects_and_no_others(world: Run) -> None:
    foreign, own = staff(Role.ADMIN, make_project("elsewhere")), staff(Role.ADMIN, world.project)
    ours = [model for model in admin.site._registry if model._meta.app_label == "rollouts"]
    shown = 0
    for model in ours:
        for row in model._default_manager.all()[:3]:
            way = path_to_project(model)
            projects = model._default_manager.filter(pk=row.pk).values_list(way, flat=True) if way else []
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
