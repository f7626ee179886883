"""What no page of the administration site sends: it is answered as Django answers a bad filter, never with a 500."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Membership
from tests.factories import make_project, make_run, make_user

pytestmark = pytest.mark.django_db
NO_KEYS = ["abc", "1\0", "9" * 30, "9" * 5000, "", "²"]
LISTS = ["rollouts/project", "rollouts/membership", "rollouts/apitoken", "auth/group", "axes/accessattempt"]


@pytest.fixture
def client() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


@pytest.mark.parametrize(
    "dates", ["rollouts/run/?created_at", "rollouts/apitoken/?created", "axes/accessattempt/?attempt_time"]
)
def test_a_date_beyond_the_last_one_filters_nothing(client: Client, dates: str) -> None:
    for query in ("__year=9999", "__year=9999&{}__month=12", "__year=9999&{}__month=12&{}__day=31"):
        path = f"/admin/{dates}{query}".replace("{}", dates.partition("?")[2])
        answer = client.get(path)
        assert (answer.status_code, answer.headers["location"][-4:]) == (302, "?e=1")


@pytest.mark.parametrize("query", ["key__regex=[", "key__iregex=(", "key__trigram_similar=a", "id__range=1", "id=abc"])
def test_what_makes_no_filter_filters_nothing(client: Client, query: str) -> None:
    answer = client.get(f"/admin/rollouts/run/?{query}")
    assert (answer.status_code, answer.headers["location"]) == (302, "/admin/rollouts/run/?e=1")


def test_rows_are_found_by_what_is_shown_of_them_and_by_nothing_else(client: Client) -> None:
    run = make_run()
    hidden = [f"address/?key__startswith={run.address.key[:4]}", f"address/?key={run.address.key}"]
    shown = [f"address/?{each}={run.pk}" for each in ("run", "run_id__lt", "pk")] + ["address/?owner__isnull=1"]
    shown += ["run/?config__name=x", "run/?state__exact=running", "event/?object_kind=run", "membership/?project__id=1"]
    for status, queries in ((400, [*hidden, "apitoken/?token_key__gt=a"]), (200, shown)):
        for query in queries:
            assert client.get(f"/admin/rollouts/{query}").status_code == status, query


@pytest.mark.parametrize("model", LISTS)
@pytest.mark.parametrize("key", NO_KEYS, ids=range(len(NO_KEYS)))
def test_no_row_is_picked_by_what_is_no_key(client: Client, model: str, key: str) -> None:
    make_project()
    for index in ({}, {"index": "0"}):
        form = {"action": "delete_selected", "_selected_action": key, "post": "yes", **index}
        assert client.post(f"/admin/{model}/", form).status_code in {302, 400}


def test_rows_are_still_picked_by_their_keys(client: Client) -> None:
    gone, left = (make_project(slug) for slug in ("gone", "left"))
    form = {"action": "delete_selected", "_selected_action": gone.pk, "post": "yes"}
    assert client.post("/admin/rollouts/project/", form).status_code == 302
    assert list(type(left).objects.all()) == [left]


@pytest.mark.parametrize("key", NO_KEYS, ids=range(len(NO_KEYS)))
def test_a_form_that_names_nobody_is_shown_again(client: Client, key: str) -> None:
    project, user = make_project(), make_user("ada", role=None)
    for names in ({"project": key, "user": user.pk}, {"project": project.pk, "user": key}):
        answer = client.post("/admin/rollouts/membership/add/", {"role": "viewer", **names})
        assert (answer.status_code, Membership.objects.count()) == (200, 0)
    inline = {"name": "x", "slug": "x", "memberships-TOTAL_FORMS": 1, "memberships-INITIAL_FORMS": 0}
    inline |= {"memberships-0-user": key, "memberships-0-role": "admin"}
    assert client.post("/admin/rollouts/project/add/", inline).status_code == 200
    if "\0" not in key:
        assert client.get("/admin/rollouts/membership/add/", {"project": key, "user": key}).status_code == 200


def test_staff_completes_names_of_accounts_and_nothing_else_of_them(client: Client) -> None:
    User.objects.create_user("ada", "lovelace@example.org", first_name="Augusta", last_name="Byron")
    query = {"app_label": "rollouts", "model_name": "membership", "field_name": "user"}
    for term, found in (("ad", ["ada"]), ("lovelace", []), ("Augusta", []), ("Byron", [])):
        answer = client.get("/admin/autocomplete/", {**query, "term": term})
        assert [each["text"] for each in answer.json()["results"]] == found
