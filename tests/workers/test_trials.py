"""Trials by a driver with real rows: each ends with what was said, or with why not."""

from collections.abc import Iterator
from typing import Any

import pytest

from rollouts.models import Run, ScoredGroup, Trial
from rollouts.services import endpoints
from rollouts.services.groups import evaluations
from rollouts.services.runs import projects, trials
from rollouts.states import RunState, TrialState
from tests import chat_server
from tests.chat_server import completion
from tests.factories import make_project
from tests.rollouts.runs.test_eval_runs import begun
from tests.workers.making import make_server, make_started_run
from tests.workers.stub_server import StubServer, stub_server
from tests.workers.test_episodes import driving
from tests.workers.waiting import eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]  # drivers live for seconds


@pytest.fixture
def stub() -> Iterator[StubServer]:
    with stub_server() as server:
        yield server


def begin(run: Run, name: str = "reverse_text", **asked: Any) -> Trial:
    wanted = {"name": name, "args": {}} | asked
    user = projects.ensure_admin()
    request = trials.TrialRequest(run.project, run.parsed.sampling, **wanted)
    return trials.begin(run, request, user=user, readable=Run.objects.all(), actor="user:admin")


def over(trial: Trial) -> Trial:
    eventually(lambda: Trial.objects.get(pk=trial.pk).is_over)
    trial.refresh_from_db()
    return trial


def test_a_driver_plays_what_is_tried_beside_its_groups(stub: StubServer) -> None:
    run = make_started_run()
    make_server(run, stub.url)
    with driving(run):
        trial = over(begin(run, problem_index=5, args={"words": 2}))
    assert (trial.state, trial.state_reason) == (TrialState.FINISHED, "")
    said = [message["role"] for message in trial.record["messages"]]
    assert said[-2:] == ["user", "assistant"]
    assert isinstance(trial.record["reward"], float)
    assert trial.record["environment_version"]
    assert "token_ids" not in trial.record
    assert ScoredGroup.objects.filter(run=run).exists()
    assert not ScoredGroup.objects.filter(run=run, problem_key=trial.record["problem_key"], rollout_count=1).exists()


def test_an_environment_that_the_run_does_not_play_can_be_tried(stub: StubServer) -> None:
    run = make_started_run(environments=[{"name": "reverse_text"}])
    make_server(run, stub.url)
    with driving(run):
        trial = over(begin(run, "instructions", temperature=0.0))
    assert trial.state == TrialState.FINISHED
    assert trial.record["metrics"]


def test_an_episode_that_breaks_is_data(stub: StubServer) -> None:
    run = make_started_run()
    make_server(run, stub.url)
    stub.mode = "nan"
    with driving(run):
        trial = over(begin(run))
    assert trial.state == TrialState.FINISHED
    assert trial.record["error"]["kind"] == "policy"
    assert "reward" not in trial.record


def test_a_driver_that_ends_gives_its_trial_up_and_says_so(stub: StubServer) -> None:
    run = make_started_run()
    make_server(run, stub.url)
    stub.mode = "hang"
    with driving(run):
        trial = begin(run)
        eventually(lambda: Trial.objects.get(pk=trial.pk).state == TrialState.PLAYING)
        shown = eventually(lambda: Trial.objects.get(pk=trial.pk).record)
        assert shown["messages"][-1]["role"] == "user"
    trial.refresh_from_db()
    assert (trial.state, trial.state_reason) == (TrialState.FAILED, "its driver ended")


def test_an_endpoint_alone_is_asked_by_the_driver_of_its_own_run() -> None:
    with chat_server.serving(lambda body: completion("olleh")) as server:
        endpoints.add(name="teacher", base_url=server.base_url, model="m", is_for_all=True, actor="user:root")
        project = make_project()
        asked = trials.TrialRequest(project, trials.ALONE, name="reverse_text", args={}, endpoint="teacher")
        who = {"user": projects.ensure_admin(), "readable": Run.objects.all(), "actor": "user:admin"}
        trial = trials.begin_alone(project, asked, **who)
        with driving(begun(trial.run)):
            trial = over(trial)
    assert (trial.state, trial.state_reason) == (TrialState.FINISHED, "")
    assert trial.record["messages"][-1] == {"role": "assistant", "content": "olleh"}
    assert trial.record["replica"] == "endpoint teacher"
    assert not ScoredGroup.objects.filter(run=trial.run).exists()
    evaluations.advance(trial.run)
    trial.run.refresh_from_db()
    assert trial.run.state == RunState.FINISHING
