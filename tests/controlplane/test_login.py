"""One-time login links, through HTTP."""

import logging
import sys
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
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
