"""Trials: who may ask for one, who may play it, and that each ends."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import InternalError, ProgrammingError
from django.db.models.functions import Now

from environments import registry
from environments.types import Split
from rollouts.errors import Conflict, Invalid, StateConflict, Untrusted
from rollouts.models import Evaluation, Event, ReplicaKind, Run, Trial
from rollouts.services import endpoints
from rollouts.services.groups import evaluations
from rollouts.services.runs import life, trials
from rollouts.states import ReplicaState, RunState, TrialState
from tests import store
from tests.factories import make_project, make_replica, make_run, make_user
from tests.rollouts import story
from tests.rollouts.runs.test_eval_runs import begun
from workers.tasks import wants_driver

pytestmark = pytest.mark.django_db


@pytest.fixture
def user() -> User:
    return make_user("ada")


@pytest.fixture
def run() -> Run:
    """With a policy that is live."""
    run = make_run()
    make_replica(run)
    return run


def begin(run: Run, user: User, **asked: Any) -> Trial:
    wanted = {"name": "reverse_text", "args": {}} | asked
    request = trials.TrialRequest(run.project, run.parsed.sampling, **wanted)
    return trials.begin(run, request, user=user, readable=Run.objects.all(), actor=f"user:{user.username}")


def begin_alone(user: User, **asked: Any) -> Trial:
    """By the endpoint teacher."""
    project, wanted = make_project(), {"name": "reverse_text", "args": {}, "endpoint": "teacher"} | asked
    request = trials.TrialRequest(project, trials.ALONE, **wanted)
    return trials.begin_alone(project, request, user=user, readable=Run.objects.all(), actor="user:ada")


@pytest.fixture
def teacher() -> None:
    endpoints.add(name="teacher", base_url="http://127.0.0.1:9/v1", model="m", is_for_all=True, actor="user:root")


def test_a_trial_is_stored_with_what_was_asked_and_who_asked(run: Run, user: User) -> None:
    trial = begin(run, user, args={"words": 2}, split=Split.EVAL, problem_index=7)
    assert trial.state == TrialState.WAITING
    assert trial.environment == {"name": "reverse_text", "args": {"words": 2}, "python": ""}
    assert (trial.split, trial.problem_index, trial.temperature) == ("eval", 7, run.parsed.sampling.temperature)
    event = Event.objects.get(object_kind="trial", object_id=trial.pk)
    assert event.actor == "user:ada"


@pytest.mark.parametrize("kind", ["rl", "eval"])
def test_what_an_evaluation_could_not_measure_can_be_tried(user: User, kind: str) -> None:
    endpoints.add(name="j", base_url="http://127.0.0.1:9/v1", model="m", is_for_all=True, actor="user:root")
    policies = [{"name": "judge", "endpoint": "j"}]
    run = make_run(overrides={"kind": kind, "evaluation.problems": 4, "policies": policies})
    make_replica(run)
    assert begin(run, user, name="judge").state == TrialState.WAITING


@pytest.mark.parametrize(
    "overrides",
    [
        {"environments": [{"name": "calculator", "group_size": 6}], "batch.batch_size": 60},
        {"environments": [{"name": "calculator", "group_size": 8}], "sampling.group_size": 1, "batch.batch_size": 8},
        {"model.lora.rank": 4},
    ],
)
@pytest.mark.parametrize("name", ["calculator", "kuhn_poker"])
def test_an_episode_is_not_judged_as_a_batch_would_be(user: User, overrides: dict[str, Any], name: str) -> None:
    run = make_run(overrides=overrides)
    make_replica(run)
    assert begin(run, user, name=name).state == TrialState.WAITING


def test_a_run_that_plays_it_says_how_it_is_sampled() -> None:
    played = [
        {"name": "calculator", "label": "short", "max_turns": 3},
        {"name": "calculator", "label": "long", "max_turns": 9, "args": {"max_calls": 2}},
    ]
    config = {"max_steps": 1, "environments": played, "sampling": {"max_turns": 1}}
    run = Run(config=config)
    assert trials.sampling_of(run, "calculator", {"max_calls": 2}).max_turns == 9
    assert trials.sampling_of(run, "calculator", {"max_calls": 3}).max_turns == 3
    assert trials.sampling_of(run, "reverse_text", {}).max_turns == 1


@pytest.mark.parametrize(
    ("asked", "key"),
    [
        ({"name": "no_such"}, "environments.0.name"),
        ({"args": {"wrods": 2}}, "environments.0.args.wrods"),
        ({"args": {"words": "two"}}, "environments.0.args.words"),
        ({"name": "gsm8k", "args": {"data": "/etc"}}, "environments.0.args.data"),
        ({"problem_index": -1}, "problem_index"),
        ({"temperature": 11.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"args": {"words": "\0"}}, "environments.0.args.words"),
    ],
)
def test_what_no_run_could_play_is_refused_at_its_key(run: Run, user: User, asked: dict[str, Any], key: str) -> None:
    with pytest.raises(Invalid) as refused:
        begin(run, user, **asked)
    assert key in refused.value.fields
    assert not Trial.objects.exists()


def test_code_from_elsewhere_needs_the_same_trust_as_in_a_launch(
    run: Run, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "places", lambda: {"theirs": "nowhere.at.all:Theirs"})
    with pytest.raises(Untrusted):
        begin(run, user, name="theirs")


def test_a_run_whose_policy_is_not_live_plays_nothing(user: User) -> None:
    without = make_run()
    make_replica(without, state=ReplicaState.STARTING)
    make_replica(without, kind=ReplicaKind.TRAINER)
    over = make_run(state=RunState.FINISHED)
    make_replica(over)
    for each in (without, over):
        with pytest.raises(StateConflict, match="no policy live"):
            begin(each, user)


def test_a_person_has_one_trial_at_a_time(run: Run, user: User) -> None:
    first = begin(run, user)
    with pytest.raises(Conflict, match="still being played"):
        begin(run, user)
    begin(run, make_user("eve"))
    [claimed] = [each for each in trials.claim(run, holder="a:1", limit=9) if each.pk == first.pk]
    trials.finish(claimed, {"reward": 1.0})
    begin(run, user)


def test_what_a_driver_says_late_changes_nothing(run: Run, user: User) -> None:
    begin(run, user)
    [claimed] = trials.claim(run, holder="a:1", limit=1)
    assert trials.claim(run, holder="b:2", limit=1) == []
    assert trials.tell(claimed, {"messages": [{"role": "user", "content": "so far\0"}]})
    stranger = Trial.objects.get(pk=claimed.pk)
    stranger.holder = "b:2"
    assert not trials.tell(stranger, {"reward": 9.0})
    trials.finish(claimed, {"reward": 0.5})
    assert not trials.tell(claimed, {"reward": 9.0})
    trials.finish(claimed, {"reward": 9.0})
    trials.drop(claimed)
    claimed.refresh_from_db()
    assert (claimed.state, claimed.record) == (TrialState.FINISHED, {"reward": 0.5})


def test_the_database_keeps_what_a_trial_says_once_it_is_over(run: Run, user: User) -> None:
    begin(run, user)
    [claimed] = trials.claim(run, holder="a:1", limit=1)
    trials.finish(claimed, {"reward": 0.5})
    with pytest.raises((InternalError, ProgrammingError), match="closed"):
        Trial.objects.filter(pk=claimed.pk).update(record={"reward": 1.0})


def test_a_trial_whose_time_is_up_fails_and_says_so(run: Run, user: User) -> None:
    trial = begin(run, user)
    assert trials.fail_overdue() == []
    with store.beyond_rights():
        Trial.objects.filter(pk=trial.pk).update(deadline_at=Now())
    assert trials.claim(run, holder="a:1", limit=1) == []
    assert trials.fail_overdue() == [trial.pk]
    trial.refresh_from_db()
    assert trial.state_reason == "it was not over within 300 s"


def test_a_trial_of_a_run_that_ended_fails(run: Run, user: User) -> None:
    trial = begin(run, user)
    life.end(run, to=RunState.FAILED)
    assert trials.fail_overdue() == [trial.pk]
    trial.refresh_from_db()
    assert trial.state_reason == "the run was failed"


def test_a_supervised_run_gets_a_driver_for_a_trial(user: User) -> None:
    run = make_run(preset="calculator-sft", overrides={"evaluation.problems": 4})
    make_replica(run)
    assert not wants_driver(run)
    begin(run, user, name="calculator")
    assert wants_driver(run)


@pytest.mark.usefixtures("teacher")
def test_an_endpoint_alone_plays_in_a_run_that_evaluates_nothing_and_ends_with_the_trial(user: User) -> None:
    trial = begin_alone(user, name="wordle", problem_index=7)
    run = begun(trial.run)
    assert (run.kind, run.name, run.created_by) == ("eval", "try-wordle", user)
    assert not Evaluation.objects.filter(run=run).exists()
    assert story.claim(run, 7) == []
    evaluations.advance(run)
    assert story.fresh(run).state == RunState.RUNNING
    assert wants_driver(run)
    [claimed] = trials.claim(run, holder="a:1", limit=1)
    assert (claimed.endpoint, claimed.problem_index, claimed.max_turns) == ("teacher", 7, 16)
    assert run.parsed.sampling.max_turns == 16
    trials.finish(claimed, {"reward": 1.0})
    evaluations.advance(run)
    assert story.fresh(run).state == RunState.FINISHING


@pytest.mark.usefixtures("teacher")
@pytest.mark.parametrize(
    ("asked", "key"),
    [
        ({"endpoint": "nobody"}, "endpoint"),
        ({"name": "no_such"}, "environments.0.name"),
        ({"args": {"wrods": 2}}, "environments.0.args.wrods"),
        ({"name": "gsm8k", "args": {"data": "/etc"}}, "environments.0.args.data"),
    ],
)
def test_what_an_endpoint_alone_could_not_play_leaves_no_run(user: User, asked: dict[str, Any], key: str) -> None:
    with pytest.raises(Invalid) as refused:
        begin_alone(user, **asked)
    assert key in refused.value.fields
    assert not Run.objects.exists()


@pytest.mark.usefixtures("teacher")
def test_a_second_trial_of_an_endpoint_alone_launches_nothing(user: User) -> None:
    begin_alone(user)
    with pytest.raises(Conflict, match="still being played"):
        begin_alone(user)
    assert Run.objects.count() == Trial.objects.count() == 1
