"""Guessing passwords: after some failures an address, and an account, has to wait, and is told how long."""

from datetime import timedelta
from urllib.parse import quote

import pytest
from axes.models import AccessAttempt
from django.conf import settings
from django.contrib.auth.hashers import MD5PasswordHasher, PBKDF2PasswordHasher
from django.contrib.auth.models import User
from django.db.models import F
from django.http import HttpResponse
from django.test import Client

from controlplane.web.lockout import FIRST_WAIT

pytestmark = pytest.mark.django_db
PASSWORD = "a word that nobody guesses"


@pytest.fixture(autouse=True)
def ada() -> User:
    return User.objects.create_user("ada", password=PASSWORD)


def sign_in(password: str = "wrong", *, username: str = "ada", address: str = "10.0.0.1") -> HttpResponse:
    return Client(REMOTE_ADDR=address).post("/login/", {"username": username, "password": password})


def fail_often(**who: str) -> None:
    for _ in range(settings.AXES_FAILURE_LIMIT):
        sign_in(**who)


def test_an_address_that_failed_often_is_told_to_wait_whatever_account_it_tries() -> None:
    for number in range(settings.AXES_FAILURE_LIMIT):
        assert sign_in(username=f"user-{number}").status_code == (
            429 if number == settings.AXES_FAILURE_LIMIT - 1 else 200
        )
    answer = sign_in(PASSWORD)
    assert answer.status_code == 429
    assert "Try again in 5 minutes" in answer.content.decode()
    assert 290 <= int(answer["Retry-After"]) <= 300
    assert sign_in(PASSWORD, address="10.0.0.2").status_code == 302


def test_an_account_that_was_guessed_at_often_waits_whatever_the_address() -> None:
    for number in range(settings.AXES_FAILURE_LIMIT):
        sign_in(address=f"10.0.1.{number}")
    assert sign_in(PASSWORD, address="10.0.0.2").status_code == 429


def test_guesses_while_one_waits_neither_prolong_the_wait_nor_hash_nor_store_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fail_often()
    before = list(AccessAttempt.objects.values())
    monkeypatch.setattr(PBKDF2PasswordHasher, "encode", lambda *_: pytest.fail("a password was hashed"))
    monkeypatch.setattr(PBKDF2PasswordHasher, "verify", lambda *_: pytest.fail("a password was hashed"))
    assert sign_in().status_code == 429
    assert sign_in(username="somebody-else").status_code == 429
    assert list(AccessAttempt.objects.values()) == before


def pass_time(passed: timedelta) -> None:
    AccessAttempt.objects.update(attempt_time=F("attempt_time") - passed)


def test_after_the_wait_one_may_try_again_and_success_forgets_the_failures() -> None:
    fail_often()
    pass_time(FIRST_WAIT + timedelta(seconds=1))
    assert sign_in(PASSWORD).status_code == 302
    assert not AccessAttempt.objects.exists()


@pytest.mark.parametrize("guessed", ["ada", "somebody else"])
def test_success_forgets_no_failure_of_another_account(guessed: str) -> None:
    User.objects.create_user("mallory", password=PASSWORD)
    for number in range(settings.AXES_FAILURE_LIMIT - 1):
        assert sign_in(username=guessed if guessed == "ada" else f"{guessed} {number}").status_code == 200
        assert sign_in(PASSWORD, username="mallory").status_code == 302
    assert sign_in(username=guessed).status_code == 429


@pytest.mark.parametrize("by", ["address", "account"])
def test_each_further_failure_doubles_the_wait_up_to_an_hour(by: str) -> None:
    def fail(number: int) -> HttpResponse:
        return sign_in(username=f"user-{number}") if by == "address" else sign_in(address=f"10.0.1.{number}")

    for number in range(settings.AXES_FAILURE_LIMIT - 1):
        fail(number)
    for number, wait_min in enumerate([5, 10, 20, 40, 60, 60], start=100):
        answer = fail(number)
        assert f"Try again in {wait_min} minutes" in answer.content.decode()
        assert wait_min * 60 - 30 <= int(answer["Retry-After"]) <= wait_min * 60
        pass_time(timedelta(minutes=wait_min - 1))
        assert sign_in(PASSWORD).status_code == 429
        pass_time(timedelta(minutes=1, seconds=1))
    pass_time(settings.AXES_COOLOFF_TIME)
    assert fail(0).status_code == 200, "all is forgotten"


def test_the_administration_locks_too() -> None:
    fail_often()
    client = Client(REMOTE_ADDR="10.0.0.1")
    assert client.post("/admin/login/", {"username": "ada", "password": PASSWORD}).status_code == 429


def test_no_password_is_kept_of_a_failure() -> None:
    sign_in("a password with a typo")
    assert "typo" not in repr(list(AccessAttempt.objects.values()))


def test_an_address_causes_no_more_hashes_than_it_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = []
    encode = MD5PasswordHasher.encode

    def count(*arguments: str) -> str:
        hashed.append(arguments)
        return encode(*arguments)

    monkeypatch.setattr(MD5PasswordHasher, "encode", count)
    for number in range(3 * settings.AXES_FAILURE_LIMIT):
        sign_in(username=f"user-{number}", address="10.0.0.9")
    assert 0 < len(hashed) <= settings.AXES_FAILURE_LIMIT


@pytest.mark.parametrize(
    "form",
    [
        {"username": PASSWORD, "password": "x"},
        {"username": "ada", "password": "x", "Password": PASSWORD},
        {"username": "ada", "password": "x", PASSWORD: ""},
    ],
    ids=["as the name", "in another field", "as a field"],
)
def test_a_password_in_the_wrong_place_is_not_kept(form: dict[str, str]) -> None:
    for _ in range(2):
        Client().post("/login/?q=" + quote(PASSWORD), form)
    [row] = AccessAttempt.objects.values()
    assert row["failures_since_start"] == 2
    assert PASSWORD not in repr(row)


def test_guesses_at_a_name_that_no_account_has_wait_as_well() -> None:
    for number in range(settings.AXES_FAILURE_LIMIT):
        sign_in(username="nobody", address=f"10.0.1.{number}")
    answer = sign_in(username="nobody", address="10.0.0.2")
    assert answer.status_code == 429
    assert 290 <= int(answer["Retry-After"]) <= 300
    assert sign_in(username="nobody-else", address="10.0.0.3").status_code == 200
