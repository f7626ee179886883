"""Who may see which run, how a run is doing in one sentence, and the newest groups."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.utils import timezone

from rollouts.errors import Forbidden, NotFound
from rollouts.models import Membership, MetricPoint, ReplicaKind, Role, Run
from rollouts.selectors import groups, pages, runs
from rollouts.services.runs import projects
from rollouts.states import RunState
from tests.factories import make_group, make_metrics, make_project, make_replica, make_run, make_user

pytestmark = pytest.mark.django_db


def test_a_user_sees_the_runs_of_the_projects_with_a_sufficient_role() -> None:
    mine, theirs = make_run(), make_run(project=make_project("theirs"))
    ada = make_user("ada", role=Role.CURATOR)
    assert list(runs.for_user(ada)) == [mine]
    assert list(runs.for_user(ada, Role.CURATOR)) == [mine]
    assert list(runs.for_user(ada, Role.OPERATOR)) == []
    assert list(runs.for_user(AnonymousUser())) == []
    assert runs.get(ada, mine.key) == mine
    with pytest.raises(Forbidden, match="role operator"):
        runs.get(ada, mine.key, Role.OPERATOR)
    with pytest.raises(NotFound):
        runs.get(ada, theirs.key, Role.OPERATOR)
    root = make_user("root", role=None)
    root.is_superuser = True
    root.save()
    assert set(runs.for_user(root, Role.ADMIN)) == {mine, theirs}


def test_roles_include_those_before_them() -> None:
    order = [Role.VIEWER, Role.CURATOR, Role.OPERATOR, Role.ADMIN]
    for position, role in enumerate(order):
        assert [each for each in order if role.includes(each)] == order[: position + 1]


def test_the_admin_is_made_once() -> None:
    first, second = projects.ensure_admin(), projects.ensure_admin()
    assert first == second
    assert not first.has_usable_password()
    assert Membership.objects.get(user=first).project == projects.ensure_default()


@pytest.mark.parametrize(
    ("state", "reason", "sentence", "level"),
    [
        (RunState.PENDING, "", "Waiting for the reconciler to pick it up (every 5 s).", "busy"),
        (RunState.FAILED, "no GPU", "Failed: no GPU.", "bad"),
        (RunState.FAILED, "", "Failed: no reason was recorded.", "bad"),
        (RunState.FINISHED, "", "Finished after 4 of 80 steps.", "over"),
        (RunState.FINISHED, "no server", "Finished after 4 of 80 steps (no server).", "over"),
        (RunState.STOPPED, "", "Stopped after 4 of 80 steps.", "over"),
        (RunState.STOPPING, "", "Stopping: its processes are being ended, at most 30 s.", "busy"),
    ],
)
def test_health_of_a_run_that_does_nothing_is_its_state(state: str, reason: str, sentence: str, level: str) -> None:
    run = make_run(state=state, next_step=4, state_reason=reason, max_steps=80)
    assert runs.health(run) == runs.Health(sentence, level)


def test_health_names_the_replica_that_is_waited_for() -> None:
    run = make_run()
    make_replica(run, state="suspect", state_reason="no answer in 5 s", state_at=timezone.now() - timedelta(seconds=42))
    make_replica(run, kind=ReplicaKind.TRAINER, state="starting")
    health = runs.health(run)
    assert health.sentence == "The inference server does not answer (for 42 s: no answer in 5 s)."
    assert health.level == "busy"


@pytest.mark.parametrize(
    ("wait_for_batch", "wait_for_policy", "begins"),
    [
        (1.0, 0.5, "Healthy"),
        (6.0, 0.5, "Generation is the bottleneck: the trainer waited 60%"),
        (1.0, 5.0, "Training is the bottleneck: generation waited 50%"),
        (90.0, 0.0, "Generation is the bottleneck: the trainer waited 100%"),
    ],
)
def test_health_says_who_waits_for_whom(wait_for_batch: float, wait_for_policy: float, begins: str) -> None:
    run = make_run(next_step=1)
    make_metrics(run, "time/step", [10.0])
    make_metrics(run, "time/wait_for_batch", [wait_for_batch])
    make_metrics(run, "time/wait_for_policy", [wait_for_policy])
    assert runs.health(run).sentence.startswith(begins)
    MetricPoint.objects.update(recorded_at=timezone.now() - timedelta(minutes=2))
    make_group(run)
    missing = "for step 1 2 of 128 rollouts are ready."
    assert runs.health(run).sentence == f"No step was finished in the last minute; {missing}"


def test_the_newest_groups_come_with_their_rollouts_in_as_many_queries_whatever_the_limit(
    django_assert_num_queries: Any,
) -> None:
    run = make_run()
    made = [make_group(run, rewards=[1.0, None]) for _ in range(6)]
    make_group(run, state="playing")
    for limit in (2, 6):
        with django_assert_num_queries(3):
            found = list(pages.list_groups(run, limit=limit))
            assert [row.index for group in found for row in group.rollouts.all()] == [0, 1] * limit
        assert found == made[::-1][:limit]
    assert list(pages.list_groups(run, state="failed", limit=9)) == []
    assert list(pages.list_groups(run, purpose="train", limit=1)) == made[-1:]


def test_older_groups_of_a_state_are_those_behind_one_that_has_left_it() -> None:
    run = make_run()
    older, last = make_group(run), make_group(run, state="trained")
    make_group(run)
    assert list(pages.list_groups(run, state="ready", before=last.pk, limit=9)) == [older]


def test_one_group_is_found_by_its_key_and_only_in_its_run() -> None:
    run = make_run()
    group = make_group(run)
    assert groups.get(run, group.key) == group
    with pytest.raises(NotFound):
        groups.get(make_run(), group.key)


def test_active_runs_are_those_that_are_not_over() -> None:
    kept = [make_run(state=state) for state in ("pending", "starting", "running", "finishing", "stopping")]
    for state in ("finished", "stopped", "failed"):
        make_run(state=state)
    assert list(runs.list_active()) == kept


def test_keys_of_runs_are_short_and_hold_no_letters_that_are_confused() -> None:
    keys = {make_run().key for _ in range(20)}
    assert len(keys) == 20
    assert all(len(key) == 10 and not set(key) & set("il1o0") for key in keys)
    assert Run.objects.count() == 20
