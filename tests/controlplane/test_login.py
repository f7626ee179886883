"""One-time login links and the sessions that people have, through HTTP."""

import logging
import sys
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from controlplane.models import LoginLink
from controlplane.web import login
from controlplane.web.redaction import LineFormatter

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin() -> User:
    return User.objects.create_superuser("admin")


def test_link_signs_in_once_and_only_once(admin: User, client: Client) -> None:
    path = login.issue(admin)
    answer = client.get(path)
    assert (answer.status_code, answer.headers["Location"]) == (302, "/")
    assert client.session["_auth_user_id"] == str(admin.pk)
    stranger = Client()
    assert stranger.get(path).status_code == 410
    assert "_auth_user_id" not in stranger.session


def test_expired_link_signs_nobody_in(admin: User, client: Client) -> None:
    path = login.issue(admin)
    LoginLink.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert client.get(path).status_code == 410


def test_link_of_a_disabled_user_signs_nobody_in(admin: User, client: Client) -> None:
    path = login.issue(admin)
    User.objects.update(is_active=False)
    assert client.get(path).status_code == 410


def test_guessed_link_is_refused(client: Client) -> None:
    assert client.get("/login/link/guess").status_code == 410


def test_database_alone_does_not_reveal_a_link(admin: User) -> None:
    token = login.issue(admin).rsplit("/", 1)[1]
    assert token not in repr(list(LoginLink.objects.values()))


def signed_in_after_a_form(client: Client, came_from: str) -> Any:
    """What somebody is answered who signs in because their session had ended when they sent a form."""
    User.objects.create_superuser("root", password="of nobody else")
    asked = client.post("/evaluations/new/", {"target": "warm"}, headers={"Referer": came_from}, follow=True)
    assert "Nothing was stored: your session had ended." in asked.content.decode()
    form = {"username": "root", "password": "of nobody else", "next": asked.context["next"]}
    return client.post(asked.redirect_chain[-1][0], form)


def test_a_form_that_comes_after_the_end_of_a_session_says_so_and_leads_back_to_its_page(client: Client) -> None:
    answer = signed_in_after_a_form(client, "http://testserver/evaluations/?target=warm#make")
    assert answer["Location"] == "/evaluations/?target=warm"
    assert client.get(answer["Location"]).status_code == 200


@pytest.mark.parametrize(
    "came_from",
    [
        "",
        "http://elsewhere.test/evaluations/",
        "//elsewhere.test/",
        "http://testserver//elsewhere.test/",
        "http://testserver@elsewhere.test/",
        "http://testserver:81/",
        "javascript:alert(1)",
    ],
)
def test_a_form_from_elsewhere_leads_nobody_there(client: Client, came_from: str) -> None:
    assert signed_in_after_a_form(client, came_from)["Location"] == "/"


def test_an_address_that_only_takes_forms_says_so(admin: User, client: Client) -> None:
    client.force_login(admin)
    answer = client.get("/evaluations/new/")
    assert (answer.status_code, answer["Allow"]) == (405, "POST")
    assert "This address takes what a form sends" in answer.content.decode()


def test_a_session_goes_on_while_its_owner_works_at_one_write_a_day(admin: User, client: Client, settings: Any) -> None:
    client.force_login(admin)
    name = settings.SESSION_COOKIE_NAME
    assert name not in client.get("/").cookies, "it began today"
    session = client.session
    session["day"] = "2026-01-01"
    session.save()
    soon = timezone.now() + timedelta(hours=1)
    Session.objects.update(expire_date=soon)
    client.get("/", headers={"HX-Request": "true"})
    assert Session.objects.get().expire_date == soon, "nobody need sit before a page that follows runs"
    assert client.get("/").cookies[name]["max-age"] == settings.SESSION_COOKIE_AGE
    assert Session.objects.get().expire_date > soon + timedelta(days=13)
    assert name not in client.get("/").cookies


@pytest.mark.parametrize("address", ["/login/link/{secret}", "/atropos/{secret}/batch", "/api/v1/runs/ry_{secret}"])
@pytest.mark.parametrize("is_in_traceback", [False, True])
def test_an_address_that_opens_something_is_cut_short_in_the_log(address: str, is_in_traceback: bool) -> None:
    secret = "s3cret-" * 6
    try:
        raise ValueError(address.format(secret=secret))
    except ValueError:
        traceback = sys.exc_info()
    said, args = ("Gone", ()) if is_in_traceback else ("%s: %s", ("Gone", address.format(secret=secret)))
    record = logging.LogRecord(
        "django.request", logging.WARNING, "", 0, said, args, traceback if is_in_traceback else None
    )
    line = LineFormatter().format(record)
    assert secret not in line
    assert address.partition("{")[0] + "..." in line


def test_nothing_in_a_line_of_the_log_commands_a_terminal_or_passes_for_another_line() -> None:
    record = logging.LogRecord(
        "a", logging.INFO, "", 0, "run %s", ("\x1b[2J\u202egnp\x85\n2026-01-01 INFO all is well",), None
    )
    assert LineFormatter().format(record) == "run ⟨U+001B⟩[2J⟨U+202E⟩gnp⟨U+0085⟩\n    2026-01-01 INFO all is well"


def test_every_handler_of_the_log_formats_its_lines_so(settings: Any) -> None:
    assert all(handler["formatter"] == "line" for handler in settings.LOGGING["handlers"].values())
    assert settings.LOGGING["formatters"]["line"]["()"].endswith("LineFormatter")
