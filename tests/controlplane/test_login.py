"""One-time login links, through HTTP."""

import logging
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from controlplane.models import LoginLink
from controlplane.web import login
from controlplane.web.redaction import WithoutSecrets

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


@pytest.mark.parametrize("address", ["/login/link/{secret}", "/atropos/{secret}/batch"])
def test_an_address_that_opens_something_is_cut_short_in_the_log(address: str) -> None:
    secret = "s3cret-" * 6
    record = logging.LogRecord(
        "django.request", logging.WARNING, "", 0, "%s: %s", ("Gone", address.format(secret=secret)), None
    )
    assert WithoutSecrets().filter(record)
    assert secret not in record.getMessage()
    assert record.getMessage().startswith("Gone: /")


def test_every_handler_of_the_log_cuts_them(settings: Any) -> None:
    assert all(handler["filters"] == ["without_secrets"] for handler in settings.LOGGING["handlers"].values())
