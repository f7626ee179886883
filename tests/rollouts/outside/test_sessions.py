"""Sessions of programs outside: durable when they are finished, submitted with their group exactly once."""

import json
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from threading import Event
from typing import Any

import msgspec
import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, ProgrammingError, connection, transaction
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from environments.types import Message, PlayedRollout, Problem, StopReason
from rollouts.errors import Conflict, ControlPlaneError, Invalid, RunOver, StateConflict
from rollouts.models import AgentSession, GroupTokens, Membership, Role, Rollout, Run, Scope, ScoredGroup
from rollouts.services.outside import sessions
from rollouts.services.outside.sessions import OpenedSession
from rollouts.states import GroupState, RunState
from tests import store
from tests.factories import make_user, somebody
from tests.rollouts import story
from tests.rollouts.api import Api, make_token, problem

pytestmark = pytest.mark.django_db

PROBLEM = Problem(key="cat", messages=[Message("user", "tac?")], data={"answer": "cat"})
LARGEST = {"type": "function", "function": {"name": "f", "parameters": {"maximum": 1.7976931348623157e308}}}
WITH_LARGE_NUMBER = Problem(key="large", messages=[Message("user", "?")], tools=[LARGEST])


def opened(run: Run, group: str | None = "g", group_size: int = 2, **options: Any) -> OpenedSession:
    values: dict[str, Any] = {
        "environment": "mine",
        "deadline_s": 60.0,
        "actor": "api:agent",
        "owner": somebody(),
    } | options
    return sessions.open_session(run, values.pop("problem", PROBLEM), group=group, group_size=group_size, **values)


def let_time_pass(run: Run) -> None:
    """Every deadline of the run lies in the past."""
    with store.beyond_rights():
        AgentSession.objects.filter(run=run).update(
            opened_at=F("opened_at") - timedelta(days=1), expires_at=F("expires_at") - timedelta(days=1)
        )


def test_a_group_is_submitted_when_its_last_session_is_finished() -> None:
    run = story.launch()
    first, second = opened(run), opened(run)
    assert not sessions.finish(first.row.pk, story.rollout(1.0))
    assert not ScoredGroup.objects.filter(run=run).exists()
    assert sessions.finish(second.row.pk, story.rollout(0.0))
    group = ScoredGroup.objects.get(run=run)
    assert (group.key, group.problem_key, group.state, group.reward_mean) == ("g", "cat", GroupState.READY, 0.5)
    assert list(group.rollouts.order_by("index").values_list("reward", flat=True)) == [1.0, 0.0]
    assert group.environment.name == "mine"
    assert AgentSession.objects.filter(run=run, grouped_at__isnull=False, record=None).count() == 2, "it is the group's"


def test_what_was_finished_is_stored_before_its_group_is() -> None:
    run = story.launch()
    one = opened(run)
    sessions.finish(one.row.pk, story.rollout(1.0, branch_lengths=[2, 2]))
    record = AgentSession.objects.get(pk=one.row.pk).record
    assert record is not None
    assert msgspec.msgpack.decode(record, type=PlayedRollout).branch_lengths == [2, 2]


def test_finishing_twice_changes_nothing() -> None:
    run = story.launch()
    one, other = opened(run), opened(run)
    sessions.finish(one.row.pk, story.rollout(1.0))
    assert not sessions.finish(one.row.pk, story.rollout(0.25))
    sessions.finish(other.row.pk, story.rollout(0.0))
    assert not sessions.finish(other.row.pk, story.rollout(0.5))
    assert list(Rollout.objects.order_by("index").values_list("reward", flat=True)) == [1.0, 0.0]
    assert GroupTokens.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_of_sessions_that_are_finished_at_the_same_moment_one_completes_the_group() -> None:
    run = story.launch()
    rows = [opened(run, group_size=4).row for _ in range(4)]
    results = story.together(*(lambda row=row: sessions.finish(row.pk, story.rollout(1.0)) for row in rows))
    assert sorted(results) == [False, False, False, True]
    assert ScoredGroup.objects.get(run=run).rollout_count == 4


@pytest.mark.django_db(transaction=True)
def test_a_group_never_gets_more_sessions_than_it_wants() -> None:
    run = story.launch()
    results = story.together(*(lambda: opened(run) for _ in range(5)))
    assert [type(result) for result in results].count(OpenedSession) == 2
    assert all("has its 2 sessions" in str(result) for result in results if isinstance(result, Exception))


@pytest.mark.django_db(transaction=True)
def test_a_session_opened_while_the_deadline_closes_its_group_is_refused_or_of_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = story.launch()
    opened(run)
    let_time_pass(run)
    asked = Event()

    def open_another() -> OpenedSession | Conflict:
        try:
            with transaction.atomic():
                another = opened(run)
                asked.set()
                story.wait_for_a_waiter()
                return another
        except Conflict as refusal:
            return refusal
        finally:
            asked.set()
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        answers: list[Future[OpenedSession | Conflict]] = []

        def let_open() -> None:
            answers.append(pool.submit(open_another))
            asked.wait(10)

        def store_and_let_open(*stored: Any) -> None:
            real_store(*stored)
            transaction.on_commit(let_open)  # as soon as the failed rollout is durable

        real_store = sessions._store
        monkeypatch.setattr(sessions, "_store", store_and_let_open)
        sessions.close_due(run)
        [answer] = [answer.result(20) for answer in answers]
    monkeypatch.undo()
    if isinstance(answer, OpenedSession):
        assert sessions.finish(answer.row.pk, story.rollout(1.0))
    assert ScoredGroup.objects.get(run=run).rollout_count == AgentSession.objects.count()


@pytest.mark.django_db(transaction=True)
def test_who_finishes_a_second_time_closes_no_group_that_is_just_getting_another_session() -> None:
    run = story.launch()
    one = opened(run)
    sessions.finish(one.row.pk, story.rollout(1.0))
    let_time_pass(run)
    with store.beyond_rights():  # in time
        AgentSession.objects.update(finished_at=F("finished_at") - timedelta(days=1))
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            other = opened(run)
            again = story.behind(pool, lambda: sessions.finish(one.row.pk, story.rollout(1.0)))
        assert again.result(10) is False
    assert sessions.finish(other.row.pk, story.rollout(0.0))
    assert ScoredGroup.objects.get(run=run).rollout_count == 2


def test_what_was_never_finished_fails_at_its_deadline_and_the_others_of_its_group_count() -> None:
    run = story.launch()
    one = opened(run, group_size=3)
    opened(run, group_size=3)
    sessions.finish(one.row.pk, story.rollout(1.0))
    assert sessions.close_due(run) == 0
    let_time_pass(run)
    assert sessions.close_due(run) == 1
    assert sessions.close_due(run) == 0
    first, second = Rollout.objects.order_by("index")
    assert (first.reward, second.stop_reason, second.error_kind) == (1.0, StopReason.ERROR, "budget")
    assert "not finished within 60 s" in second.error["message"]
    assert second.messages == [{"role": "user", "content": "tac?"}]


def test_a_session_whose_time_is_over_is_found_no_more_and_neither_is_one_of_a_run_that_ended() -> None:
    run = story.launch()
    one, other = opened(run, group=None, group_size=1), opened(run, group=None, group_size=1)
    assert sessions.find_open(one.key) == one.row
    assert sessions.find_open(f"{one.key}x") is None
    sessions.finish(one.row.pk, story.rollout(1.0))
    assert sessions.find_open(one.key) is None
    with store.beyond_rights():
        Run.objects.filter(pk=run.pk).update(state=RunState.STOPPED, finished_at=timezone.now())
    assert sessions.find_open(other.key) is None
    with pytest.raises(RunOver):
        sessions.finish(other.row.pk, story.rollout(1.0))
    assert AgentSession.objects.get(pk=other.row.pk).finished_at is None


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"problem": Problem(key="dog", messages=[])}, Conflict, "another problem"),
        ({"environment": "other"}, Conflict, "another problem"),
        ({"environment_version": "2"}, Conflict, "version of it"),
        ({"group_size": 3}, Conflict, "another problem"),
        ({"group": "x" * 65}, Invalid, ""),
        ({"group": "a\0"}, Invalid, ""),
        ({"environment": ""}, Invalid, ""),
        ({"group_size": 5000, "group": "new"}, Invalid, ""),
        ({"problem": Problem(key="k\0", messages=[]), "group": "new"}, Invalid, ""),
    ],
)
def test_what_does_not_fit_is_not_opened(options: dict[str, Any], error: type[ControlPlaneError], words: str) -> None:
    run = story.launch()
    opened(run)
    with pytest.raises(error, match=words or None):
        opened(run, **options)
    assert AgentSession.objects.count() == 1


def test_the_tools_of_a_problem_are_played_as_they_were_sent_and_are_the_same_in_another_order() -> None:
    run, function = (
        story.launch(),
        {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}},
    )
    sent = msgspec.structs.replace(PROBLEM, tools=[{"type": "function", "function": function}])
    row = opened(run, problem=sent).row
    row.refresh_from_db()
    assert json.dumps(sessions.problem_of(row).tools) == json.dumps(sent.tools)
    backwards = dict(reversed(function.items()))
    opened(run, problem=msgspec.structs.replace(PROBLEM, tools=[{"function": backwards, "type": "function"}]))


def test_a_problem_whose_numbers_the_database_spells_otherwise_is_the_same_problem() -> None:
    run = story.launch()
    assert opened(run, problem=WITH_LARGE_NUMBER).row.group_key == opened(run, problem=WITH_LARGE_NUMBER).row.group_key


def test_a_session_whose_problem_has_a_large_number_fails_at_its_deadline_and_holds_up_nobody() -> None:
    run = story.launch()
    one = opened(run, group_size=1, problem=WITH_LARGE_NUMBER).row
    one.refresh_from_db()
    assert sessions.problem_of(one) == WITH_LARGE_NUMBER
    let_time_pass(run)
    assert sessions.close_due(run) == 1
    with pytest.raises(Invalid) as refused:
        opened(run, "other", problem=msgspec.structs.replace(PROBLEM, tools=[{"maximum": 10**400}]))
    assert "beyond 64 bits" in refused.value.fields["problem.tools"]


def test_a_rollout_that_cannot_be_stored_leaves_its_session_open() -> None:
    run = story.launch()
    one = opened(run)
    with pytest.raises(Invalid):
        sessions.finish(one.row.pk, story.rollout(float("inf")))
    assert sessions.find_open(one.key) is not None


def test_the_application_cannot_change_what_a_session_left() -> None:
    run = story.launch()
    one = opened(run)
    sessions.finish(one.row.pk, story.rollout(1.0))
    for change in ({"record": b"x"}, {"key_digest": "x"}, {"problem": {}}, {"record": None, "grouped_at": Now()}):
        with pytest.raises((IntegrityError, ProgrammingError)), transaction.atomic():
            AgentSession.objects.filter(pk=one.row.pk).update(**change)


def test_a_group_that_the_run_cannot_take_holds_up_nobody() -> None:
    """Somebody stored a group of the same key meanwhile."""
    run = story.launch()
    one, other = opened(run, "taken", 1), opened(run, "free", 1)
    story.submit(run, [story.scored("taken")], actor="token:t")
    with pytest.raises(Conflict, match="was used"):
        sessions.finish(one.row.pk, story.rollout(1.0))
    let_time_pass(run)
    assert sessions.close_due(run) == 1
    assert sessions.close_due(run) == 0
    assert set(ScoredGroup.objects.values_list("key", flat=True)) == {"taken", "free"}
    assert not AgentSession.objects.filter(grouped_at=None).exists()
    refused, stored = (AgentSession.objects.get(pk=each.row.pk) for each in (one, other))
    assert (bool(refused.record), bool(stored.record)) == (True, False), "what no group has is not let go of"
    with pytest.raises(Conflict, match="has a group taken"):
        opened(run, "taken", 1)


def test_a_session_of_a_run_that_has_not_been_started_is_refused_for_now_alone() -> None:
    run = story.create()
    with pytest.raises(StateConflict, match="has not been started yet"):
        opened(run)
    run.state = RunState.STOPPED
    with pytest.raises(RunOver):
        opened(run)


def test_deadlines_of_a_run_that_trains_no_more_are_nobodys_business() -> None:
    run = story.launch()
    opened(run)
    let_time_pass(run)
    run.state = RunState.FINISHING
    assert sessions.close_due(run) == 0


@pytest.mark.parametrize("is_closed", [False, True])
def test_what_comes_after_the_deadline_is_refused_and_not_told_as_stored(is_closed: bool) -> None:
    run = story.launch()
    one = opened(run)
    let_time_pass(run)
    if is_closed:
        sessions.close_due(run)
    with pytest.raises(Conflict, match="not finished in time"):
        sessions.finish(one.row.pk, story.rollout(1.0))


def test_a_session_of_somebody_who_was_dismissed_is_played_no_more() -> None:
    run = story.launch()
    ada = make_user("ada", role=Role.OPERATOR)
    one = opened(run, owner=ada)
    assert sessions.still_open([one.row.pk]) == {one.row.pk}
    Membership.objects.filter(user=ada).update(role=Role.VIEWER)
    assert sessions.find_open(one.key) is None
    Membership.objects.filter(user=ada).update(role=Role.ADMIN)
    assert sessions.find_open(one.key) is not None
    User.objects.filter(pk=ada.pk).update(is_active=False)
    assert sessions.find_open(one.key) is None
    assert sessions.still_open([one.row.pk]) == set()


def ask(run: Run, body: Any, *, scope: Scope = Scope.PLAY) -> Any:
    return Api(make_token([scope])).post(f"runs/{run.key}/sessions", body)


def test_the_api_opens_a_session_and_tells_its_key_once() -> None:
    run = story.launch()
    sent = {"problem": msgspec.to_builtins(PROBLEM), "environment": "mine", "group": "g", "group_size": 2}
    answer = ask(run, sent)
    assert answer.status_code == 201
    told = answer.json()
    row = sessions.find_open(told["api_key"])
    assert row is not None
    assert str(row.name) == told["session"]
    assert told["base_url"] == f"http://gateway.test/s/{told['api_key']}/v1"
    assert told["finish_url"] == f"http://gateway.test/s/{told['api_key']}/finish"
    assert told["problem"] == {"key": "cat", "messages": [{"role": "user", "content": "tac?"}], "tools": []}
    assert "answer" not in str(row.problem)
    assert told["api_key"] not in str(AgentSession.objects.values().get())


def test_a_problem_of_an_environment_that_ships_is_posed_by_its_number() -> None:
    run = story.launch()
    told = ask(run, {"environment": "reverse_text", "index": 10_000_007}).json()
    assert told["group_size"] == 1
    assert told["problem"]["messages"][0]["content"] == "Reverse the text."
    assert told == ask(run, {"environment": "reverse_text", "index": 7}).json() | {
        key: told[key] for key in ("session", "group", "base_url", "api_key", "finish_url", "expires_at")
    }


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "problem"),
        ({"problem": {"key": "p", "messages": []}, "index": 1}, "problem"),
        ({"index": 1}, "environment"),
        ({"environment": "nowhere", "index": 1}, "environment"),
    ],
)
def test_the_api_says_what_is_missing(body: dict[str, Any], field: str) -> None:
    assert field in problem(ask(story.launch(), body), 422, "invalid")["fields"]


def test_a_run_without_a_policy_of_ours_opens_none(settings: Any) -> None:
    body = {"problem": {"key": "p", "messages": []}}
    problem(ask(story.launch_supervised(), body), 409, "conflict")
    settings.ROLLYARD_GATEWAY_URL = ""
    problem(ask(story.launch(), body), 409, "conflict")
