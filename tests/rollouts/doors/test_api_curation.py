"""Labels and acts over the API: what people say and do, by tokens that may, page by page."""

from typing import Any

import pytest

from rollouts.models import Label, Role, Run, Scope, ScoredGroup
from tests.rollouts import story
from tests.rollouts.api import Api, make_token, problem

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    run = story.launch()
    story.submit(run, [story.scored(key) for key in "abc"], actor="api:t")
    return run


def curator(*scopes: Scope) -> Api:
    return Api(make_token(scopes or (Scope.READ, Scope.CURATE), role=Role.CURATOR))


def act(api: Api, run: Run, verb: str, *groups: str, **fields: Any) -> Any:
    return api.post(f"runs/{run.key}/acts", {"verb": verb, "groups": groups} | fields)


def test_a_label_is_stored_read_and_superseded(run: Run) -> None:
    api, path = curator(), f"runs/{run.key}/labels"
    said = {
        "group": "a",
        "verdict": "reject",
        "rollout": 1,
        "tags": ["loop"],
        "score": -1.5,
        "note": "no",
        "seconds": 2,
    }
    first = api.post(path, said)
    assert first.status_code == 201
    assert first.json() | said == first.json()
    second = api.post(path, said | {"verdict": "accept"}).json()
    assert second["supersedes"] == first.json()["label"]
    assert api.get(f"{path}?group=a").json() == {"labels": [second], "next_before": None}
    assert api.get(f"{path}?group=b").json()["labels"] == []
    api.post(path, said | {"verdict": "withdrawn"})
    assert api.get(path).json()["labels"] == []
    assert Label.objects.count() == 3


def test_two_rollouts_are_compared(run: Run) -> None:
    pair = {"group": "a", "verdict": "accept", "rollout": 0, "other": 1, "preference": "tie"}
    said = curator().post(f"runs/{run.key}/labels", pair).json()
    assert said | pair == said


def test_groups_are_rejected_as_one_act_and_restored_by_undoing_it(run: Run) -> None:
    api = curator()
    done = act(api, run, "reject", "a", "b", note="they cheat").json()
    assert (done["groups"], done["verb"], done["note"], done["undone_by"]) == (2, "reject", "they cheat", None)
    assert set(ScoredGroup.objects.filter(state="rejected").values_list("key", flat=True)) == {"a", "b"}
    undone = api.post(f"runs/{run.key}/acts/{done['act']}/undo", {"note": "they do not"}).json()
    assert (undone["groups"], undone["undoes"]) == (2, done["act"])
    assert not ScoredGroup.objects.filter(state="rejected").exists()
    listed = api.get(f"runs/{run.key}/acts").json()["acts"]
    assert [(each["act"], each["undone_by"]) for each in listed] == [
        (undone["act"], None),
        (done["act"], undone["act"]),
    ]
    problem(api.post(f"runs/{run.key}/acts/{done['act']}/undo"), 409, "conflict")


def test_lists_are_read_page_by_page(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollouts.doors.native.curation.PAGE", 2)
    api = curator()
    for group in "abc":
        api.post(f"runs/{run.key}/labels", {"group": group, "verdict": "accept"})
        act(api, run, "exclude", group)
    for name in ("labels", "acts"):
        first = api.get(f"runs/{run.key}/{name}").json()
        second = api.get(f"runs/{run.key}/{name}?before={first['next_before']}").json()
        assert (len(first[name]), len(second[name]), second["next_before"]) == (2, 1, None)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"verb": "reject", "groups": ["a", "x", "y"]}, {"groups.1", "groups.2"}),
        ({"verb": "undo", "groups": ["a"]}, {"verb"}),
        ({"verb": "reject", "groups": ["a"], "note": "n" * 2_001}, {"note"}),
    ],
)
def test_an_act_that_makes_no_sense_does_nothing(run: Run, body: dict[str, Any], named: set[str]) -> None:
    refused = problem(curator().post(f"runs/{run.key}/acts", body), 422, "invalid")
    assert set(refused["fields"]) == named
    assert not ScoredGroup.objects.exclude(withheld="").exists()


def test_what_is_unknown_is_not_found(run: Run) -> None:
    api = curator()
    problem(api.post(f"runs/{run.key}/labels", {"group": "x", "verdict": "accept"}), 404, "not_found")
    problem(api.get(f"runs/{run.key}/labels?group=x"), 404, "not_found")
    problem(api.get(f"runs/{run.key}/labels?group=%00"), 404, "not_found")
    problem(api.post(f"runs/{run.key}/acts/x/undo"), 404, "not_found")


def test_a_viewer_and_a_token_without_the_scope_are_refused(run: Run) -> None:
    viewer = Api(make_token([Scope.READ, Scope.CURATE], role=Role.VIEWER))
    problem(act(viewer, run, "reject", "a"), 403, "forbidden")
    problem(act(curator(Scope.READ), run, "reject", "a"), 403, "forbidden")
    assert act(curator(Scope.CURATE), run, "reject", "a").status_code == 201
    problem(curator(Scope.CURATE).get(f"runs/{run.key}/acts"), 403, "forbidden")
