"""What is said when PostgreSQL has no room: the real refusal, without a disk that is full (`test_full_disk.py` of
`tests/controlplane/` fills one)."""

from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.http import HttpRequest
from django.test import Client

from controlplane.web.unavailable import UnavailablePages
from rollouts import full_disk
from rollouts.doors.atropos.app import AtroposDoor
from rollouts.doors.messages import Request
from rollouts.doors.native import problems

pytestmark = pytest.mark.django_db(transaction=True)

REQUEST = Request("POST", "/atropos/x/scored_data", "", {})


@pytest.fixture(autouse=True)
def nothing_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_disk, "_refused_at", 0.0)


def refusal(sqlstate: str) -> OperationalError:
    """What Django makes of an error of PostgreSQL."""
    with pytest.raises(OperationalError) as raised, connection.cursor() as cursor:
        cursor.execute(f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{sqlstate}'; END $$")
    return raised.value


def test_each_door_names_the_disk_and_what_to_do() -> None:
    error = refusal(full_disk.DISK_FULL)
    described = problems.describe(error)
    assert described is not None
    status, headers, body = described
    assert (status, body["code"], headers["Retry-After"]) == (503, "disk_full", "1")
    atropos = AtroposDoor().refusal(error, REQUEST)
    page = UnavailablePages(lambda _: pytest.fail("no view")).process_exception(HttpRequest(), error)
    assert page is not None
    assert (atropos.status, page.status_code, page["Retry-After"]) == (503, 503, "1")
    for said in (body["detail"], atropos.body.decode(), page.content.decode()):
        assert "The disk of the database is full" in said
        assert "Free some space" in said


def test_a_database_that_is_away_for_another_reason_is_said_to_be_away() -> None:
    error = refusal("57P03")
    described = problems.describe(error)
    assert described is not None
    assert described[2]["code"] == "unavailable"
    assert b"does not answer" in AtroposDoor().refusal(error, REQUEST).body
    assert UnavailablePages(lambda _: pytest.fail("no view")).process_exception(HttpRequest(), error) is None


def test_an_embedded_database_without_room_is_not_ready_and_says_where(
    settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings.DATABASE_DIRECTORY = tmp_path
    assert Client().get("/readyz").status_code == 200
    monkeypatch.setattr(full_disk, "NEEDED_BYTES", 2**62)
    answer = Client().get("/readyz")
    assert answer.status_code == 503
    assert "its disk is full" in answer.json()["database"]
    assert str(tmp_path) in answer.json()["database"]
    described = problems.describe(OperationalError("the connection is gone: PostgreSQL had to end"))
    assert described is not None
    assert described[2]["code"] == "disk_full"


def test_a_database_elsewhere_is_not_ready_for_as_long_as_its_refusal_is_believed(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DATABASE_DIRECTORY = None
    full_disk.explain(refusal(full_disk.DISK_FULL))
    assert Client().get("/readyz").status_code == 503
    monkeypatch.setattr(full_disk, "BELIEVED_FOR_S", 0.0)
    assert Client().get("/readyz").status_code == 200
