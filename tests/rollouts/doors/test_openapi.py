"""The description of the API is complete, without warnings, and changes only on purpose."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from drf_spectacular.generators import SchemaGenerator

from rollouts.doors.native import description
from tests.rollouts import story

SNAPSHOT = Path(__file__).parents[2] / "snapshots" / "openapi.json"
REWRITE = "ROLLYARD_UPDATE_SNAPSHOTS"


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("schema") / "openapi.json"
    call_command("spectacular", "--fail-on-warn", "--validate", "--format", "openapi-json", "--file", str(path))
    described: dict[str, Any] = json.loads(path.read_text())
    return described


def test_the_api_is_what_was_agreed(schema: dict[str, Any]) -> None:
    """Set ROLLYARD_UPDATE_SNAPSHOTS=1 to accept a change on purpose; the diff of the file is then part of it."""
    written = json.dumps(schema, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
    if os.environ.get(REWRITE):
        SNAPSHOT.write_text(written)
    assert SNAPSHOT.read_text() == written, f"the API changed; run with {REWRITE}=1 to accept it"


def test_those_who_ask_at_once_for_the_description_get_one_that_is_made_once(
    schema: dict[str, Any], db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    class Generator(SchemaGenerator):
        def get_schema(self, request: Any = None, public: bool = False) -> Any:
            made.append(self)
            return super().get_schema(request, public)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(description, "SchemaGenerator", Generator)
    description.written.cache_clear()
    path = "/api/v1/schema?format=json&version=x%0d%0aY:1"
    answers = story.together(*[lambda: Client().get(path)] * 8)
    assert [json.loads(each.content) for each in answers] == [schema] * 8
    assert len(made) == 1


def test_the_page_of_the_api_may_style_itself_and_nothing_more(client: Client, db: None) -> None:
    policy = client.get("/api/v1/docs").headers["Content-Security-Policy"].split("; ")
    assert "style-src 'self' 'unsafe-inline'" in policy
    assert "script-src 'self'" in policy


def test_every_operation_is_named_described_and_needs_credentials(schema: dict[str, Any]) -> None:
    operations = [operation for path in schema["paths"].values() for operation in path.values()]
    assert len(operations) == 54
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    for operation in operations:
        assert operation["description"]
        assert operation["security"] == [{"knoxApiToken": []}, {"cookieAuth": []}]


@pytest.mark.django_db
@pytest.mark.parametrize("method", ["options", "post", "put", "delete", "patch", "trace"])
def test_the_page_about_the_api_is_only_read(method: str) -> None:
    assert getattr(Client(), method)("/api/v1/docs").status_code == 405
