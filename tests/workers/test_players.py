"""Endpoints that play: the whole of an evaluation, a seat beside the policy, a trial. Real rows, a real HTTP server."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from environments.figures import COMPLETION_TOKENS
from rollouts.errors import Invalid
from rollouts.models import Evaluation, MetricPoint, Purpose, Rollout, Run, ScoredGroup, Trial
from rollouts.selectors import evaluations as selected
from rollouts.services import endpoints
from rollouts.services.curation import examples
from rollouts.services.runs import evaluating, projects, trials
from rollouts.services.runs.evaluating import EnvironmentIn, EvaluationIn
from rollouts.states import EvaluationState, GroupState, RunState, TrialState
from tests.chat_server import ChatServer, completion, serving
from tests.workers.making import make_server, make_started_run
from tests.workers.reconciling import is_live, reconciling, state
from tests.workers.stub_server import stub_server
from tests.workers.test_episodes import driving
from tests.workers.waiting import eventually
from trainers.config import ConfigError
from trainers.origins import COMMAND_LINE
from workers import players, tasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]  # drivers live for seconds
KEY = "sk-canary-0815"


@pytest.fixture
def teacher(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    """Knows the answer of half of the problems: it turns the first word around."""
    monkeypatch.setenv("TEST_TEACHER_API_KEY", KEY)

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        asked = body["messages"][-1]["content"].split("\n")[-1]
        return completion(asked[::-1] if len(asked) % 2 else asked)

    with serving(reply) as server:
        endpoints.add(
            name="teacher",
            base_url=server.base_url,
            model="m",
            key_reference="env:TEST_TEACHER_API_KEY",
            is_for_all=True,
            actor="user:root",
        )
        yield server


def launch(target: str, **asked: Any) -> Run:
    wanted = EvaluationIn(target=target, environments=[EnvironmentIn(name="reverse_text")], **asked)
    return evaluating.launch(
        wanted,
        project=projects.ensure_default(),
        user=projects.ensure_admin(),
        actor="user:admin",
        forkable=Run.objects.all(),
        origin=COMMAND_LINE,
    )


def measured(run: Run) -> Evaluation:
    """The evaluation of a run, played to its end."""
    with reconciling():
        eventually(is_live(run, 0))
        run.refresh_from_db()
        assert tasks.wants_driver(run)
        with driving(run):
            eventually(lambda: state(run) == RunState.FINISHED)
    return Evaluation.objects.get(run=run)


def test_an_endpoint_is_evaluated_as_a_model_is(teacher: ChatServer) -> None:
    run = launch("endpoint:teacher", problems=20, samples=2, max_tokens=40)
    found = measured(run)
    assert found.state == EvaluationState.DONE
    assert found.figures["problems"] == 20
    assert found.figures["failed"] == 0
    assert 0 < found.figures["avg@2"]["value"] < 1
    assert found.figures["tokens"] == 40 * 3
    rollouts = list(Rollout.objects.filter(group__run=run))
    assert {(each.replica, each.token_count, each.metrics[COMPLETION_TOKENS]) for each in rollouts} == {
        ("endpoint teacher", 0, 3.0)
    }
    assert {headers["Authorization"] for headers in teacher.headers} == {f"Bearer {KEY}"}
    assert {(body["max_tokens"], body["temperature"]) for body in teacher.asked} == {(40, 1.0)}
    counted = MetricPoint.objects.filter(run=run, key="policies/teacher/asks").values_list("value", flat=True)
    assert sum(counted) == 40
    assert KEY not in json.dumps(run.config)


def test_an_endpoint_that_is_busy_for_a_while_is_asked_again(
    teacher: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(players, "_FIRST_PAUSE_S", 0.01)
    answer, refused = teacher.reply, iter(range(8))
    teacher.reply = lambda body: 429 if next(refused, None) is not None else answer(body)
    found = measured(launch("endpoint:teacher", problems=2))
    assert (found.figures["rollouts"], found.figures["failed"]) == (2, 0)


def test_what_an_endpoint_refuses_is_data(teacher: ChatServer) -> None:
    teacher.reply = lambda body: 401
    found = measured(launch("endpoint:teacher", problems=3))
    assert found.figures["errors"] == {"policy: PolicyRefused": 3}
    assert found.state == EvaluationState.DONE


def test_an_endpoint_that_nobody_added_or_that_cannot_play_is_refused_at_launch(teacher: ChatServer) -> None:
    with pytest.raises(Invalid) as refused:
        launch("endpoint:teachr")
    assert "did you mean teacher?" in refused.value.fields["model.endpoint"]
    with pytest.raises(ConfigError, match="has no weights to train"):
        launch("endpoint:teacher", overrides={"kind": "rl"})
    with pytest.raises(ConfigError, match="both say who plays"):
        launch("endpoint:teacher", overrides={"model.path": "/models/mine"})
    with pytest.raises(ConfigError, match="an endpoint plays"):
        launch("endpoint:teacher", overrides={"inference.replicas": 1})
    assert not Run.objects.exists()


def test_an_endpoint_has_the_seat_that_the_run_gives_it(teacher: ChatServer) -> None:
    teacher.reply = lambda body: completion("<action>pass</action>")
    run = make_started_run(
        environments=[{"name": "kuhn_poker", "seats": {"first": "rival"}}],
        policies=[{"name": "rival", "endpoint": "teacher"}],
        sampling__max_turns=3,
    )
    with stub_server() as stub:
        make_server(run, stub.url)
        with driving(run):
            settled = ScoredGroup.objects.filter(run=run, purpose=Purpose.TRAIN).exclude(state=GroupState.PLAYING)
            eventually(lambda: settled.count() >= 2)
    group = settled.order_by("id").first()
    assert group is not None
    seats = list(group.rollouts.values_list("seat", "error_kind").order_by("index"))
    assert seats == [("second", "")] * 2
    assert teacher.asked


def test_an_endpoint_plays_a_trial_in_place_of_the_policy(teacher: ChatServer) -> None:
    run = make_started_run()
    with stub_server() as stub:
        make_server(run, stub.url)
        with driving(run):
            asked = trials.TrialRequest(
                run.project, run.parsed.sampling, name="reverse_text", args={}, endpoint="teacher"
            )
            user = projects.ensure_admin()
            trial = trials.begin(run, asked, user=user, readable=Run.objects.all(), actor="user:admin")
            eventually(lambda: Trial.objects.get(pk=trial.pk).is_over)
    trial.refresh_from_db()
    assert trial.state == TrialState.FINISHED
    assert trial.record["replica"] == "endpoint teacher"
    assert trial.record["messages"][-1]["role"] == "assistant"
    with pytest.raises(Invalid, match="Nothing is tried"):
        trials.TrialRequest(run.project, run.parsed.sampling, name="reverse_text", args={}, endpoint="nobody")


def test_what_a_teacher_solved_becomes_data_with_where_it_is_from(teacher: ChatServer) -> None:
    run = launch("endpoint:teacher", problems=12, samples=2, split="train")
    found = measured(run)
    lines = [json.loads(line) for line in _exported(run, min_reward=1.0)]
    solved = Rollout.objects.filter(group__run=run, reward__gte=1.0).values("group").distinct().count()
    assert 0 < len(lines) == solved < found.problems
    for line in lines:
        assert (line["run"], line["teacher"], line["reward"]) == (run.key, "endpoint:teacher", 1.0)
        assert line["messages"][-1]["role"] == "assistant"
        group = ScoredGroup.objects.get(key=line["group"])
        assert line["problem_key"] == group.problem_key
    below = selected.below(run, 1.0)
    assert below == Rollout.objects.filter(group__run=run).count() - Rollout.objects.filter(reward__gte=1.0).count()
    again = launch("endpoint:teacher", problems=2)
    assert examples.curated_states(again) == examples.CURATED, "held-out problems are not learned from"


def _exported(run: Run, **selection: Any) -> list[bytes]:
    chosen = examples.Selection(**selection)
    return list(examples.export_examples(run, chosen, states=examples.curated_states(run)))
