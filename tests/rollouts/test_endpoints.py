"""Endpoints: administrators name them, projects see their own, and the row says no key and is never changed."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from rollouts.errors import Conflict, Invalid, NotFound
from rollouts.models import Endpoint
from rollouts.services import endpoints
from tests.chat_server import serving
from tests.controlplane.command_line import Rollyard
from tests.factories import make_project

pytestmark = pytest.mark.django_db
URL = "https://api.example.com/v1"


def add(name: str = "judge", **changed: Any) -> Endpoint:
    return endpoints.add(
        **{"name": name, "base_url": URL, "model": "m", "is_for_all": True, "actor": "user:root"} | changed
    )


def test_a_project_may_ask_its_own_and_everybodys() -> None:
    mine, other = make_project("mine"), make_project("other")
    add("for-all")
    add("for-mine", is_for_all=False, projects=[mine])
    assert [row.name for row in endpoints.usable(mine)] == ["for-all", "for-mine"]
    assert [row.name for row in endpoints.usable(other)] == ["for-all"]
    assert endpoints.find(mine, "for-mine").base_url == URL
    with pytest.raises(NotFound) as unknown:
        endpoints.find(other, "for-mine")
    assert "rollyard endpoints add" in str(unknown.value) or "did you mean for-all?" in str(unknown.value)
    with pytest.raises(NotFound, match="an administrator adds it with `rollyard endpoints add nobody`"):
        endpoints.find(other, "nobody")


def test_a_name_is_given_once_at_a_time_and_rows_stay() -> None:
    add()
    with pytest.raises(Conflict, match="remove it first"):
        add(model="another")
    endpoints.remove("judge", actor="cli:root")
    assert not endpoints.usable(make_project()).exists()
    with pytest.raises(NotFound):
        endpoints.remove("judge", actor="cli:root")
    add(model="another")
    rows = Endpoint.objects.order_by("pk").values_list("model", "added_actor", "removed_actor")
    assert list(rows) == [("m", "user:root", "cli:root"), ("another", "user:root", "")]


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"name": "Judge"}, "name"),
        ({"name": "judge\n"}, "name"),
        ({"base_url": "http://api.example.com"}, "base_url"),
        ({"key_reference": "sk-secret"}, "key_reference"),
        ({"key_reference": "env:HOME"}, "key_reference"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"timeout_s": 10_000}, "timeout_s"),
        ({"model": "m\u202e"}, "model"),
        ({"model": ""}, "model"),
        ({"note": "\x00"}, "note"),
        ({"is_for_all": False}, "projects"),
    ],
)
def test_what_is_wrong_is_told_at_its_field(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        add(**changed)
    assert list(refused.value.fields) == [field]
    assert not Endpoint.objects.exists()


def test_the_table_itself_takes_no_key() -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Endpoint.objects.create(name="judge", base_url=URL, model="m", key_reference="sk-secret", added_actor="a")


def test_the_command_line_adds_checks_and_removes(tmp_path: Path) -> None:
    rollyard, key = Rollyard(tmp_path), "sk-canary-987"
    with serving(lambda body: "yes") as server:
        words = ("add", "judge", "--base-url", server.base_url, "--model", "m", "--key", "env:TEST_JUDGE_API_KEY")
        done = [
            rollyard("endpoints", *words),
            rollyard("endpoints", *words, "--all-projects"),
            rollyard("endpoints", "check", "judge"),
            rollyard("endpoints", "check", "judge", "--json", TEST_JUDGE_API_KEY=key),
            rollyard("endpoints", "list"),
            rollyard("endpoints", "remove", "judge"),
            rollyard("endpoints", "check", "judge"),
            rollyard("endpoints", "list", "--removed", "--json"),
        ]
    assert [each.returncode for each in done] == [1, 0, 1, 0, 0, 0, 1, 0]
    assert "projects" in done[0].stderr
    assert "TEST_JUDGE_API_KEY is not set" in done[2].stderr
    assert json.loads(done[3].stdout)["completion_tokens"] == 3
    assert server.headers[0]["Authorization"] == f"Bearer {key}"
    (row,) = json.loads(done[7].stdout)
    assert row["removed_by"].startswith("cli:")
    assert not any(key in each.stdout + each.stderr for each in done)
