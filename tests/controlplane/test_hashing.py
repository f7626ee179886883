"""Hashing passwords takes from the others what they leave: one at a time, at a low priority."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.contrib.auth.models import User
from django.test import Client

from controlplane.web import hashing
from controlplane.web.hashing import MAX_WAITING, PRIORITY, PatientHasher
from rollouts.errors import Unavailable

DEADLINE_S = 30.0


class Held:
    """Hashing that goes on until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.let_go = threading.Event()
        self.at_once = self.most_at_once = 0
        self.priorities: set[int] = set()

    def encode(self, *_: object) -> str:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.priorities.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        self.begun.release()
        assert self.let_go.wait(DEADLINE_S)
        self.at_once -= 1
        return "pbkdf2_sha256$1$salt$hash"


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    held = Held()
    monkeypatch.setattr(PBKDF2PasswordHasher, "encode", held.encode)
    return held


def test_a_password_is_hashed_as_django_hashes_it() -> None:
    theirs = PBKDF2PasswordHasher().encode("a word", "salt", 10)
    assert PatientHasher().encode("a word", "salt", 10) == theirs
    assert PatientHasher().verify("a word", theirs)
    assert not PatientHasher().verify("another", theirs)


def test_of_many_passwords_one_is_hashed_at_a_time_and_those_beyond_a_number_are_not(held: Held) -> None:
    with ThreadPoolExecutor(MAX_WAITING) as people:
        hashed = [people.submit(PatientHasher().encode, "a word", "salt") for _ in range(MAX_WAITING)]
        assert held.begun.acquire(timeout=DEADLINE_S)
        while hashing._places.acquire(blocking=False):  # until all have a place
            hashing._places.release()
        with pytest.raises(Unavailable, match="Try again"):
            PatientHasher().encode("a word", "salt")
        held.let_go.set()
        assert len({each.result(DEADLINE_S) for each in hashed}) == 1
    assert held.most_at_once == 1
    assert held.priorities == {PRIORITY}


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/login/", "/admin/login/"])
def test_who_signs_in_with_too_many_others_is_told_to_come_again(
    settings: Any, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    User.objects.create_user("ada", password="a word that nobody guesses")
    settings.PASSWORD_HASHERS = ["controlplane.web.hashing.PatientHasher"]
    monkeypatch.setattr(hashing, "_places", threading.BoundedSemaphore(1))
    hashing._places.acquire()
    answer = Client().post(path, {"username": "nobody", "password": "x"})
    assert (answer.status_code, answer["Retry-After"]) == (503, "1")
