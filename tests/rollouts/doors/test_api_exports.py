"""Exports over REST: asked for, followed, fetched, cancelled, removed; by whom may, in the project alone."""

import hashlib
from typing import Any

import pytest

from rollouts.models import DatasetVersion, Role, Scope
from rollouts.services.datasets import exports
from tests.factories import make_project
from tests.rollouts import story
from tests.rollouts.api import Api, make_token, problem
from tests.rollouts.datasets.test_making import make, played

pytestmark = pytest.mark.django_db


@pytest.fixture
def version() -> DatasetVersion:
    run = story.launch()
    story.submit(run, [played("a", [0.5, 1.0]), played("b", [0.0, 0.25])], actor="api:t")
    return make(run)


def curator(*scopes: Scope, **options: Any) -> Api:
    return Api(make_token(scopes or (Scope.READ, Scope.CURATE), role=Role.CURATOR, **options))


def test_an_export_is_asked_for_followed_fetched_and_removed(version: DatasetVersion) -> None:
    api = curator()
    made = api.post("exports", {"version": "good@1", "form": "sft"})
    assert made.status_code == 201
    export = made.json()
    assert (export["state"], export["examples"], export["examples_done"]) == ("queued", 4, 0)
    path = f"exports/{export['export']}"
    problem(api.get(f"{path}/files/train.jsonl"), 409, "state_conflict")
    exports.write_all("w")
    done = api.get(path).json()
    assert (done["state"], done["rows"]) == ("done", 4)
    assert api.get("exports").json() == {"exports": [done], "next_before": None}
    file = api.get(f"{path}/files/train.jsonl")
    body = b"".join(file.streaming_content)
    assert hashlib.sha256(body).hexdigest() == done["manifest"]["files"]["train.jsonl"]["sha256"]
    problem(api.get(f"{path}/files/secret"), 404, "not_found")
    assert api.post(f"{path}/remove").json()["state"] == "deleted"
    problem(api.post(f"{path}/cancel"), 409, "state_conflict")


def test_one_that_waits_is_cancelled(version: DatasetVersion) -> None:
    api = curator()
    export = api.post("exports", {"version": "good@1", "form": "kto", "file_format": "parquet"}).json()
    assert api.post(f"exports/{export['export']}/cancel").json()["state"] == "cancelled"


@pytest.mark.parametrize("body", [{"version": "good@2"}, {"version": "good"}, {"version": "@1"}, {"form": "dpo"}])
def test_what_is_not_there_is_refused(version: DatasetVersion, body: dict[str, str]) -> None:
    problem(curator().post("exports", {"version": "good@1", "form": "sft"} | body), 422, "invalid")


def test_others_see_nothing_and_readers_fetch_nothing(version: DatasetVersion) -> None:
    export = exports.request(version, form="sft", user=None, actor="user:cy")
    exports.write_all("w")
    path = f"exports/{export.key}"
    reader = Api(make_token([Scope.READ], role=Role.VIEWER))
    assert reader.get(path).status_code == 200
    for answer in (
        reader.get(f"{path}/files/train.jsonl"),
        reader.post(f"{path}/remove"),
        reader.post("exports", {"version": "good@1", "form": "sft"}),
    ):
        assert answer.status_code == 403
    stranger = curator(project=make_project("other"))
    assert stranger.get("exports").json()["exports"] == []
    problem(stranger.get(path), 404, "not_found")
    problem(stranger.get(f"{path}/files/train.jsonl"), 404, "not_found")
    problem(stranger.post(f"{path}/remove"), 404, "not_found")
    problem(stranger.post("exports", {"version": "good@1", "form": "sft"}), 422, "invalid")
