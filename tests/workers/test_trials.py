"""Trials by a driver with real rows: each ends with what was said, or with why not."""

from collections.abc import Iterator
from typing import Any

import pytest

from rollouts.models import Run, ScoredGroup, Trial
from rollouts.services.runs import projects, trials
from rollouts.states import TrialState
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
    return trials.begin(
        run, trials.TrialRequest(run, **wanted), user=user, readable=Run.objects.all(), actor="user:admin"
    )


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
