"""Launch, list, show and stop runs over the API; read their metrics and events."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client
from django.utils import timezone

from rollouts.doors.native import runs as native_runs
from rollouts.models import Event, Role, Run, Scope
from rollouts.services.runs import checkpoints, life
from tests.factories import (
    make_event,
    make_group,
    make_lively_run,
    make_metrics,
    make_project,
    make_replica,
    make_run,
    make_user,
)
from tests.model_files import make_warm
from tests.rollouts import story
from tests.rollouts.api import Api, make_token, problem, row_counts
from trainers.wire import CheckpointIn

pytestmark = pytest.mark.django_db


@pytest.fixture
def api() -> Api:
    return Api(make_token())


def test_a_run_is_launched_from_a_preset_with_changes(api: Api) -> None:
    warm = make_warm()
    body = {
        "preset": "reverse-text-rl",
        "config": {"batch": {"batch_size": 64}},
        "overrides": {"max_steps": 5, "optimizer.lr": 0.5},
    }
    answer = api.post("runs", body)
    assert answer.status_code == 201
    run = Run.objects.get(key=answer.json()["run"])
    assert (run.max_steps, run.parsed.batch.batch_size, run.parsed.optimizer.lr) == (5, 64, 0.5)
    assert (run.project.slug, run.state, run.created_by.username) == ("words", "pending", "operator-Words")  # type: ignore[union-attr]
    assert {str(run.origins[key]) for key in ("batch.batch_size", "max_steps", "optimizer.lr")} == {"REST request"}
    assert run.parsed.model.path == warm.source
    assert api.get(f"runs/{run.key}").json()["model"] == "reverse-text-warm"
    assert Event.objects.get().actor == "api:test"


def test_a_run_is_forked_over_the_api_and_says_from_where(api: Api) -> None:
    source, epoch = story.train()
    found = {"path": str(source.directory / "checkpoints" / "step_1"), "manifest_sha256": "b" * 64, "size_bytes": 5}
    checkpoints.add_checkpoint(source, epoch=epoch, checkpoint=CheckpointIn(step=1, **found))  # type: ignore[arg-type]
    answer = api.post("runs", {"preset": "reverse-text-rl", "fork_from": source.key})
    assert answer.status_code == 201
    assert api.get(f"runs/{answer.json()['run']}").json()["forked_from"] == f"{source.key}@1"
    assert api.get(f"runs/{source.key}").json()["forked_from"] is None
    problem(api.post("runs", {"preset": "reverse-text-rl", "fork_from": f"{source.key}@2"}), 404, "not_found")
    problem(api.post("runs", {"preset": "reverse-text-rl", "fork_from": "nothing"}), 404, "not_found")
    for step in ("9" * 5000, "٣", "²", ""):
        fork = {"preset": "reverse-text-rl", "fork_from": f"{source.key}@{step}"}
        assert "fork_from" in problem(api.post("runs", fork), 422, "invalid")["fields"]


def test_the_optimizers_state_comes_with_a_checkpoint_that_the_config_names(api: Api) -> None:
    source, epoch = story.train()
    found = {"path": str(source.directory / "checkpoints" / "step_1"), "manifest_sha256": "b" * 64, "size_bytes": 5}
    checkpoints.add_checkpoint(source, epoch=epoch, checkpoint=CheckpointIn(step=1, **found))  # type: ignore[arg-type]
    body = {"preset": "reverse-text-rl", "fork_optimizer": True}
    answer = api.post("runs", body | {"overrides": {"model.path": f"{source.key}@1"}})
    assert Run.objects.get(key=answer.json()["run"]).fork_optimizer
    refused = api.post("runs", body | {"overrides": {"model.path": make_warm().source}})
    assert list(problem(refused, 422, "invalid")["fields"]) == ["fork_optimizer"]


def test_a_model_that_is_missing_or_would_not_load_is_refused_at_its_key(api: Api) -> None:
    missing = problem(api.post("runs", {"preset": "reverse-text-rl"}), 422, "model_missing")
    assert list(missing["fields"]) == ["model.path"]
    for path in ("/nowhere", "nonsuch", "nonsuch@4", "./here"):
        body = {"preset": "reverse-text-rl", "overrides": {"model.path": path}}
        assert list(problem(api.post("runs", body), 422, "invalid")["fields"]) == ["model.path"]
    assert not Run.objects.exists()


def test_a_token_forks_no_run_of_a_foreign_project_by_its_model_path(api: Api) -> None:
    source, epoch = story.train()
    found = {"path": str(source.directory / "checkpoints" / "step_1"), "manifest_sha256": "b" * 64, "size_bytes": 5}
    checkpoints.add_checkpoint(source, epoch=epoch, checkpoint=CheckpointIn(step=1, **found))  # type: ignore[arg-type]
    body = {"preset": "reverse-text-rl", "overrides": {"model.path": f"{source.key}@1"}}
    both = make_user("both", project=make_project("theirs"))
    source.project.memberships.create(user=both, role=Role.OPERATOR)
    foreign = Api(make_token(user=both, project=make_project("theirs")))
    assert "There is no run" in problem(foreign.post("runs", body), 422, "invalid")["fields"]["model.path"]
    answer = api.post("runs", body)
    assert api.get(f"runs/{answer.json()['run']}").json()["forked_from"] == f"{source.key}@1"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"preset": "nonsense"}, "preset"),
        ({"preset": "reverse-text-rl", "overrides": {"max_steps": 0}}, "max_steps"),
        ({"preset": "reverse-text-rl", "overrides": {"max_steps": "many"}}, "max_steps"),
        ({"preset": "reverse-text-rl", "overrides": {"batch.batch_size": 7}}, "batch.batch_size"),
        ({"preset": "reverse-text-rl", "overrides": {"nonsense.key": 1}}, "nonsense"),
        ({"preset": "reverse-text-rl", "config": {"nonsense": 1}}, "nonsense"),
        ({"preset": "reverse-text-rl", "overrides": {"name": "-rf"}}, "name"),
        ({"preset": "reverse-text-rl", "overrides": {"name": "a;b"}}, "name"),
        ({"preset": "reverse-text-rl", "config": {"sampling": {"top_p": 0.9}}}, "sampling.top_p"),
        ({}, "max_steps"),
    ],
    ids=str,
)
def test_a_config_that_makes_no_sense_is_refused_naming_the_key(api: Api, body: Any, field: str) -> None:
    fields = problem(api.post("runs", body), 422, "invalid_config")["fields"]
    assert any(path == field or path.startswith(f"{field}.") for path in fields), fields
    assert not Run.objects.exists()


def test_every_fault_of_a_launch_is_answered_at_once_with_what_was_meant(api: Api) -> None:
    overrides = {"optimizer.shedule": "linear", "batch.batch_size": 9, "environments.0.name": "reverse_txt"}
    body = {"preset": "reverse-txt-rl", "config": {"seed": "x"}, "overrides": overrides}
    answer = problem(api.post("runs", body), 422, "invalid_config")
    assert answer["fields"].keys() == {"preset", "seed", *overrides}
    assert answer["suggestions"] == {
        "preset": "reverse-text-rl",
        "optimizer.shedule": "optimizer.schedule",
        "environments.0.name": "reverse_text",
    }
    assert "Did you mean optimizer.schedule?" in answer["fields"]["optimizer.shedule"]


@pytest.mark.parametrize(
    "body",
    [
        {"preset": "reverse-text-rl", "overrides": {"max_steps": 2**31}},
        {"preset": "reverse-text-rl", "overrides": {"max_steps": 10**30}},
        {"preset": "reverse-text-rl", "overrides": {"evaluation.problems": 2**40}},
        {"preset": "reverse-text-rl", "overrides": {"evaluation.deadline_s": 1e300}},
        {"preset": "reverse-text-rl", "overrides": {"workers.lease_s": 1e300}},
        {"preset": "reverse-text-rl", "overrides": {"sampling.group_size": 2**40, "batch.batch_size": 2**40}},
        {"preset": "reverse-text-rl", "overrides": {"environments.0.weight": 1e300}},
        {"preset": "reverse-text-rl", "overrides": {"environments.0.name": "e" * 101}},
        {"preset": "reverse-text-rl", "overrides": {"model.path": "a\0b"}},
        {"preset": "reverse-text-rl", "config": {"environments": [{"name": "e", "args": {"a\0": 1}}]}},
        {"preset": 7},
        {"overrides": []},
        {"preset": "reverse-text-rl", "project": "a\0"},
        [],
        None,
    ],
    ids=str,
)
def test_a_config_that_cannot_be_stored_is_refused(api: Api, body: Any) -> None:
    before = row_counts()
    answer = api.post("runs", body)
    assert (answer.status_code, answer.json()["code"]) in {(422, "invalid"), (422, "invalid_config")}
    assert row_counts() == before


@pytest.mark.parametrize("levels", [40, 300, 900, 100_000])
def test_a_config_of_great_depth_is_refused(api: Api, levels: int) -> None:
    args = b'{"a":' * levels + b"1" + b"}" * levels
    body = b'{"preset":"reverse-text-rl","config":{"environments":[{"name":"e","args":' + args + b"}]}}"
    answer = api.post("runs", body)
    assert answer.status_code in {400, 422}
    assert not Run.objects.exists()


def test_runs_are_listed_newest_first_a_hundred_a_page(api: Api, django_assert_num_queries: Any) -> None:
    keys = [make_run().key for _ in range(103)][::-1]
    with django_assert_num_queries(3):
        first = api.get("runs").json()
    assert [each["run"] for each in first["runs"]] == keys[:100]
    with django_assert_num_queries(3):
        second = api.get(f"runs?before={first['next_before']}").json()
    assert [each["run"] for each in second["runs"]] == keys[100:]
    assert second["next_before"] is None


def test_a_run_is_shown_with_its_health_ledger_and_config(api: Api, django_assert_num_queries: Any) -> None:
    run = make_run(next_step=2)
    for state in ("trained", "ready", "ready", "failed"):
        make_group(run, state=state)
    with django_assert_num_queries(9):
        shown = api.get(f"runs/{run.key}").json()
    assert (shown["run"], shown["step"], shown["state"]) == (run.key, 2, "running")
    assert {(line["state"], line["groups"]) for line in shown["ledger"]} == {
        ("trained", 1),
        ("ready", 2),
        ("failed", 1),
    }
    assert shown["config"] == run.config
    assert shown["health"]


def test_stopping_over_the_api_twice_is_stopping_once(api: Api) -> None:
    run = make_run()
    first = api.post(f"runs/{run.key}/stop", {"reason": "enough"})
    second = api.post(f"runs/{run.key}/stop", {"reason": "again"})
    assert (first.status_code, second.status_code) == (200, 200)
    assert second.json()["reason"] == "enough"
    assert Event.objects.get().actor == "api:test"
    over = make_run(state="finished")
    problem(api.post(f"runs/{over.key}/stop"), 409, "state_conflict")


def test_metrics_are_read_in_one_query_per_question(api: Api, django_assert_num_queries: Any) -> None:
    run = make_run()
    make_metrics(run, "loss/mean", [3.0, 2.0, 1.0])
    make_metrics(run, "reward/mean", [0.0, 1.0])
    with django_assert_num_queries(5):
        series = api.get(f"runs/{run.key}/metrics").json()["series"]
    assert series["loss/mean"] == [[0, 3.0, 3.0, 3.0, 0], [1, 2.0, 2.0, 2.0, 1], [2, 1.0, 1.0, 1.0, 2]]
    with django_assert_num_queries(4):
        few = api.get(f"runs/{run.key}/metrics?keys=loss/mean,none&points=1&after_step=0").json()["series"]
    assert few == {"loss/mean": [[2, 1.5, 1.0, 2.0, 1]], "none": []}
    make_metrics(run, "reward/short, easy/mean", [0.5])
    escaped = api.get(f"runs/{run.key}/metrics?keys=none,reward/short%5C,%20easy/mean").json()["series"]
    assert escaped == {"none": [], "reward/short, easy/mean": [[0, 0.5, 0.5, 0.5, 0]]}


def test_of_very_many_metrics_those_that_were_left_out_are_told(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_runs, "KEYS", 2)
    run = make_run()
    for key in ("a", "b", "c"):
        make_metrics(run, key, [1.0])
    answer = api.get(f"runs/{run.key}/metrics").json()
    assert (list(answer["series"]), answer["left_out"]) == (["a", "b"], ["c"])
    assert list(api.get(f"runs/{run.key}/metrics?keys=c").json()["series"]) == ["c"]


@pytest.mark.parametrize(
    "query",
    [
        "metrics?points=x",
        "metrics?points=1e3",
        "metrics?after_step=--1",
        f"metrics?after_step={'9' * 30}",
        "metrics?keys=%00",
        "events?after_seq=x",
        f"events?after_seq={'9' * 30}",
        "events?after_seq=%D9%A3",
    ],
)
def test_a_bad_query_is_refused(api: Api, query: str) -> None:
    run = make_run()
    problem(api.get(f"runs/{run.key}/{query}"), 422, "invalid")


@pytest.mark.parametrize(
    "query",
    [
        "metrics?points=0",
        "metrics?points=-5",
        f"metrics?after_step={10**17}",
        f"events?after_seq={10**17}",
        "metrics?keys=,,",
    ],
)
def test_an_odd_query_is_answered(api: Api, query: str) -> None:
    run = make_run()
    make_metrics(run, "loss/mean", [1.0])
    assert api.get(f"runs/{run.key}/{query}").status_code == 200
    assert api.get(f"runs?before={10**17}").status_code == 200


def test_events_are_read_newest_first_and_after_a_number(api: Api, django_assert_num_queries: Any) -> None:
    run = make_run()
    events = [make_event(run, to=state, reason="r") for state in ("starting", "running")]
    with django_assert_num_queries(4):
        read = api.get(f"runs/{run.key}/events").json()["events"]
    assert [each["seq"] for each in read] == [event.pk for event in events][::-1]
    later = api.get(f"runs/{run.key}/events?after_seq={events[0].pk}").json()["events"]
    assert [each["to_state"] for each in later] == ["running"]


def test_events_behind_a_number_are_paged_through_without_missing_one(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollouts.doors.native.runs.EVENTS", 2)
    run = make_run()
    made = [make_event(run, to="running", reason="r").pk for _ in range(5)]
    seen = [0]
    while events := api.get(f"runs/{run.key}/events?after_seq={seen[-1]}").json()["events"]:
        seen += [each["seq"] for each in events]
    assert seen[1:] == made


def test_what_a_run_has_cost_is_read_in_parts_that_add_up(api: Api, django_assert_num_queries: Any) -> None:
    run, now = make_run(), timezone.now()
    began = {"launcher": "slurm", "begun_at": now - timedelta(seconds=100), "gpus": 2, "cores": 8}
    server = make_replica(run, **began)
    make_event(run, kind="replica", object_id=server.pk, to="ready")
    make_replica(run, slot=1, **began, state="lost", reason="it died")
    make_replica(run, slot=1)
    with django_assert_num_queries(6):
        cost = api.get(f"runs/{run.key}/cost").json()
    assert (cost["run"], cost["is_final"], cost["replicas"], cost["unmeasured"]) == (run.key, False, 3, 1)
    assert cost["spent"]["starting"] == cost["total"] == {"gpu_s": 400, "core_s": 1600}
    assert {part for part, seconds in cost["spent"].items() if seconds["gpu_s"]} == {"starting"}


@pytest.mark.parametrize("path", ["nonsense", "runs/", "runs/x/y/z", "runs/a b", "", "runs/%00", "runs/..%2f..%2fetc"])
def test_an_address_that_is_none_is_answered_with_a_problem(api: Api, path: str) -> None:
    problem(api.get(path), 404, "not_found")
    problem(api.post(path), 404, "not_found")
    problem(Api().get(path), 404, "not_found")


def test_a_method_that_an_address_has_not_is_refused(api: Api) -> None:
    run = make_run()
    problem(api.client.delete(f"/api/v1/runs/{run.key}", headers=api.headers), 405, "method_not_allowed")
    problem(api.get(f"runs/{run.key}/stop"), 405, "method_not_allowed")
    assert story.fresh(run).state == "running"


def test_reading_changes_nothing(api: Api) -> None:
    run = make_lively_run()
    before = row_counts()
    stamp = list(Run.objects.values())
    for path in ("runs", f"runs/{run.key}", f"runs/{run.key}/metrics", f"runs/{run.key}/events", "schema", "docs"):
        assert api.get(path).status_code == 200
        assert api.client.head(f"/api/v1/{path}", headers=api.headers).status_code == 200
    assert row_counts() == before
    assert list(Run.objects.values()) == stamp


def test_a_database_that_is_away_is_answered_503_and_asks_to_come_back(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()

    def away(*args: Any, **kwargs: Any) -> None:
        raise OperationalError("the connection is lost")

    monkeypatch.setattr(life, "request_stop", away)
    answer = api.post(f"runs/{run.key}/stop")
    problem(answer, 503, "unavailable")
    assert answer.headers["Retry-After"] == "1"


def test_a_bug_is_not_dressed_up_as_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run()
    api = Api(make_token([Scope.LAUNCH]))
    api.client = Client(raise_request_exception=False)
    monkeypatch.setattr(life, "request_stop", lambda *args, **kwargs: 1 / 0)
    assert api.post(f"runs/{run.key}/stop").status_code == 500
