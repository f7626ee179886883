"""Addresses that no page of ours links to: an answer that is a refusal or a page, never an error of ours."""

import asyncio
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.factories import make_run
from tests.hostile.application import call

NUMBERS = ["9" * 5000, "9" * 19, "-1", "²", "1e3", "٣", ""]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("path", ["/", "/runs/{key}/rollouts/", "/runs/{key}/events/"])
def test_a_cursor_that_is_none_is_ignored(client: Client, path: str, number: str) -> None:
    run = make_run()
    page = client.get(path.format(key=run.key), {"before": number})
    assert page.status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/?q=a%00b",
        "/runs/new/?clone=%00",
        "/runs/new/?preset=%00",
        "/runs/%00/",
        "/runs/{key}/groups/%00/",
        "/models/x%00/y/",
        "/admin/rollouts/run/?q=%00",
        "/admin/rollouts/run/?state__exact=%00",
        "/admin/rollouts/run/?key=%00",
    ],
)
def test_a_nul_in_an_address_is_refused(client: Client, path: str) -> None:
    client.force_login(User.objects.create_superuser("root"))
    page = client.get(path.format(key=make_run().key))
    assert page.status_code == 400
    assert "NUL" in page.content.decode()


@pytest.mark.parametrize("model", ["rollouts/project", "rollouts/run", "auth/user", "auth/group"])
@pytest.mark.parametrize("page", ["change", "delete"])
def test_a_row_is_found_by_its_number_where_no_field_is_named(client: Client, model: str, page: str) -> None:
    client.force_login(User.objects.create_superuser("root"))
    row = make_run().pk if model == "rollouts/run" else 1
    assert client.get(f"/admin/{model}/{row}/{page}/?_to_field=").status_code < 500
    assert client.post(f"/admin/{model}/{row}/{page}/?_to_field=").status_code < 500


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("path", ["/", "/healthz", "/login/", "/admin/", "/api/v1/runs"])
@pytest.mark.parametrize("key", ['"aaaaaaaaaaaa\\000"', '"aaaaaaaa\\303\\251"', "a" * 5000, "A" * 32, ""])
def test_a_cookie_that_is_no_session_is_none(path: str, key: str) -> None:
    def ask(cookies: str) -> tuple[int, str]:
        answer = asyncio.run(call("GET", path, {"cookie": cookies}))
        assert answer is not None
        return answer.status, answer.headers.get("location", "")

    assert ask(f"theme=dark; rollyard_session={key}; rollyard_csrf=x") == ask("theme=dark; rollyard_csrf=x")


@pytest.mark.parametrize("path", ["/nowhere", "/login/"])
def test_what_broke_a_page_is_in_the_log_once(path: str, settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    manifest = "django.contrib.staticfiles.storage.ManifestStaticFilesStorage"
    settings.STORAGES = settings.STORAGES | {"staticfiles": {"BACKEND": manifest}}  # nothing was collected
    assert Client(raise_request_exception=False).get(path).status_code == 500
    [logged] = [each for each in caplog.records if each.levelname == "ERROR"]
    assert logged.getMessage() == f"Internal Server Error: {path}"
    assert "Missing staticfiles manifest entry" in caplog.text
