"""Datasets over the API: made by recipe or of rows, read page by page, compared, by tokens that may."""

from typing import Any

import msgspec
import pytest

from rollouts.models import Role, Run, Scope
from rollouts.services.datasets import counting
from tests.factories import make_project
from tests.rollouts import story
from tests.rollouts.api import Api, make_token, problem
from tests.rollouts.datasets.test_importing import told
from tests.rollouts.datasets.test_making import correct, make, played
from tests.store import beyond_rights

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    run = story.launch()
    story.submit(run, [played("a", [0.5, 1.0]), played("b", [0.0, 0.25])], actor="api:t")
    return run


def curator(*scopes: Scope, **options: Any) -> Api:
    return Api(make_token(scopes or (Scope.READ, Scope.CURATE), role=Role.CURATOR, **options))


def test_a_version_is_made_read_and_listed(run: Run) -> None:
    api = curator()
    made = api.post("datasets", {"name": "good", "recipe": {"runs": [run.key], "best": 1}, "licence": "CC0"})
    assert made.status_code == 201
    version = made.json()
    assert (version["version"], version["members"], version["statistics"]) == (1, 2, None)
    counting.count(run.project.datasets.get().versions.get().pk)
    path = f"datasets/{version['dataset']}"
    read = api.get(f"{path}/versions/1").json()
    assert read["statistics"]["figures"]["train"] == 2
    assert read | {"statistics": None} == version
    [listed] = api.get("datasets").json()["datasets"]
    assert (listed["name"], listed["newest"], listed["licence"]) == ("good", 1, "CC0")
    assert api.get(path).json() == listed | {"versions": [version]}


def test_members_are_read_page_by_page(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollouts.doors.native.datasets.PAGE", 2)
    correct("b", 0, answer="better")
    with beyond_rights():
        run.groups.filter(key="a").update(given_rewards=[1.0, 7.0])
    path = f"datasets/{make(run).dataset.key}/versions/1/members"
    api = curator()
    first = api.get(path).json()
    assert [member["position"] for member in first["members"]] == [0, 1]
    assert [member["reward"] for member in first["members"]] == [7.0, 1.0], "those that people gave"
    second = api.get(f"{path}?after={first['next_after']}").json()
    last = second["members"][-1]
    assert (last["group"], last["rollout"], last["is_human"]) == ("b", 0, True)
    assert (last["messages"][-1]["content"], last["original"][-1]["content"]) == ("better", "b0")
    assert api.get(f"{path}?after={second['next_after']}").json() == {"members": [], "next_after": None}


def test_rows_are_imported_and_bad_ones_told_by_number() -> None:
    api = curator()
    make_project()
    made = api.post("datasets/import", {"name": "rows", "rows": [told("a"), told("b", label=False)]}).json()
    assert (made["members"], made["recipe"]["file"]) == (2, "the API")
    rows = api.get(f"datasets/{made['dataset']}/versions/1/members").json()["members"]
    assert [(row["row"]["messages"][-1]["content"], row["is_wanted"]) for row in rows] == [("a", True), ("b", False)]
    refused = problem(api.post("datasets/import", {"name": "rows", "rows": [told("a"), {"x": 1}]}), 422, "invalid")
    assert list(refused["fields"]) == ["rows.1"]


def test_rows_are_json() -> None:
    body = msgspec.msgpack.encode({"name": "rows", "rows": [{"a": msgspec.msgpack.Ext(5, b"x")}]})
    answer = curator().post("datasets/import", body, content_type="application/msgpack")
    problem(answer, 415, "unsupported_media_type")


def test_two_versions_are_compared(run: Run) -> None:
    make(run, best=1)
    path = f"datasets/{make(run).dataset.key}/difference"
    api = curator()
    found = api.get(f"{path}?before=1&after=2").json()
    assert found["counts"] == {"added": 2, "removed": 0, "relabelled": 0, "moved": 0, "same": 2}
    assert found["first"]["added"] == [[None, 1], [None, 3]]
    assert problem(api.get(f"{path}?before=1"), 422, "invalid")["fields"] == {"after": "must be given"}
    problem(api.get(f"{path}?before=1&after=3"), 404, "not_found")
    problem(api.get(f"{path}?before=1&after=-3"), 404, "not_found")


def test_notes_and_licence_are_changed(run: Run) -> None:
    path = f"datasets/{make(run).dataset.key}"
    said = curator().post(f"{path}/notes", {"notes": "Of one run.", "licence": "MIT"}).json()
    assert (said["notes"], said["licence"]) == ("Of one run.", "MIT")
    assert curator().get(path).json()["notes"] == "Of one run."


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"recipe": {"runs": ["nosuch"]}}, "runs"),
        ({"form": "songs"}, "form"),
        ({"name": "No Name"}, "name"),
        ({"recipe": {}}, "runs"),
    ],
)
def test_what_cannot_be_meant_is_told_by_field(run: Run, asked: dict[str, Any], field: str) -> None:
    body = {"name": "good", "recipe": {"runs": [run.key]}} | asked
    assert field in problem(curator().post("datasets", body), 422, "invalid")["fields"]


def test_who_may_not_curate_makes_nothing_and_who_may_not_read_sees_nothing(run: Run) -> None:
    body = {"name": "good", "recipe": {"runs": [run.key]}}
    problem(curator(Scope.READ).post("datasets", body), 403, "forbidden")
    problem(Api(make_token(role=Role.VIEWER)).post("datasets", body), 404, "not_found")
    key = make(run).dataset.key
    problem(curator(Scope.CURATE).get(f"datasets/{key}"), 403, "forbidden")
    problem(Api(make_token(project=make_project("elsewhere"))).get(f"datasets/{key}"), 404, "not_found")
    bound = curator(run=run)
    problem(bound.get(f"datasets/{key}"), 404, "not_found")
    assert bound.get("datasets").json() == {"datasets": []}
    problem(Api().get("datasets"), 401, "not_authenticated")
