"""Who may see which page, and who may change something: every path against every kind of person."""

import pytest
from django.test import Client
from django.urls import reverse

from rollouts.models import Run
from rollouts.reasons import Reason, ReasonCode
from rollouts.states import RunState
from tests.factories import make_batch, make_group, make_run

PAGES = ["run", "run-live", "run-rollouts", "run-events", "run-config", "group", "step"]


@pytest.fixture
def run() -> Run:
    run = make_run(next_step=1)
    group = make_group(run, key="group-0")
    make_batch(run, 0, [group])
    return run


def path_of(name: str, run: Run) -> str:
    extra = {"group": ["group-0"], "step": [0]}.get(name, [])
    return reverse(name, args=[run.key, *extra])


@pytest.mark.parametrize("name", PAGES)
def test_a_member_of_the_project_sees_the_page(viewer_client: Client, run: Run, name: str) -> None:
    assert viewer_client.get(path_of(name, run)).status_code == 200


@pytest.mark.parametrize("name", PAGES)
def test_to_a_stranger_the_page_does_not_exist(stranger_client: Client, run: Run, name: str) -> None:
    response = stranger_client.get(path_of(name, run))
    assert response.status_code == 404
    assert run.name not in response.content.decode()


@pytest.mark.parametrize("name", ["runs", "launch"])
def test_a_page_without_a_run_asks_to_sign_in(name: str) -> None:
    response = Client().get(reverse(name))
    assert response.status_code == 302
    assert response["Location"].startswith("/login/")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_a_run_asks_to_sign_in(run: Run, name: str) -> None:
    assert Client().get(path_of(name, run)).status_code == 302


def test_the_icon_is_where_pages_that_name_none_look_for_it() -> None:
    response = Client().get("/favicon.ico", follow=True)
    assert (response.status_code, response.headers["Content-Type"]) == (200, "image/svg+xml")


def test_a_stranger_sees_no_run_in_the_list(stranger_client: Client, run: Run) -> None:
    assert run.key not in stranger_client.get("/").content.decode()


def test_a_stranger_cannot_clone_what_they_cannot_see(stranger_client: Client, run: Run) -> None:
    assert stranger_client.get(reverse("launch"), {"clone": run.key}).status_code == 404


def test_an_operator_stops_a_run(client: Client, run: Run) -> None:
    response = client.post(reverse("run-stop", args=[run.key]))
    assert response.status_code == 302
    run.refresh_from_db()
    assert run.state == RunState.STOPPING
    assert run.reason == Reason(ReasonCode.STOP_ASKED, actor="user:ada")


def test_a_viewer_sees_no_stop_button_and_cannot_post(viewer_client: Client, run: Run) -> None:
    assert "stop-dialog" not in viewer_client.get(reverse("run", args=[run.key])).content.decode()
    assert viewer_client.post(reverse("run-stop", args=[run.key])).status_code == 403
    run.refresh_from_db()
    assert run.state == RunState.RUNNING


def test_a_stranger_cannot_stop_and_does_not_learn_that_the_run_exists(stranger_client: Client, run: Run) -> None:
    assert stranger_client.post(reverse("run-stop", args=[run.key])).status_code == 404


def test_a_viewer_may_not_launch(viewer_client: Client) -> None:
    assert viewer_client.get(reverse("launch")).status_code == 403
    assert viewer_client.post(f"{reverse('launch')}?preset=reverse-text-rl").status_code == 403
    assert not Run.objects.exists()


def test_stopping_needs_a_post(client: Client, run: Run) -> None:
    assert client.get(reverse("run-stop", args=[run.key])).status_code == 405


def test_a_form_of_another_site_cannot_stop_a_run(operator: object, run: Run) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(operator)  # type: ignore[arg-type]
    assert client.post(reverse("run-stop", args=[run.key])).status_code == 403


def test_a_run_that_is_over_cannot_be_stopped_again(client: Client) -> None:
    run = make_run(state=RunState.FINISHED)
    page = client.post(reverse("run-stop", args=[run.key]), follow=True).content.decode()
    assert "there is nothing to stop" in page
    assert "stop-dialog" not in page
