"""The run page on its environments: what came of their newest groups, what went wrong, and what is in flight now."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import Value
from django.db.models.functions import Now
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from rollouts.models import DriverLoad, KnownProblem, Rollout, Run, RunEnvironment, ScoredGroup
from rollouts.selectors import environments
from rollouts.services.groups import loads
from rollouts.sql import load
from rollouts.states import GroupState, RunState
from tests import store
from tests.factories import make_group, make_run
from tests.frontend.test_hostile_text import SCRIPT


def body(client: Client, run: Run, name: str = "run", **query: str) -> str:
    response = client.get(reverse(name, args=[run.key]), query)
    assert response.status_code == 200
    return response.content.decode()


def panel(page: str) -> str:
    return page.split('id="run-environments"')[1].split("</section>")[0]


def play(
    run: Run, rewards: list[float | None], *, spans: Any = None, error: dict[str, str] | None = None, **columns: Any
) -> ScoredGroup:
    """A group of the run's first environment; its state is `failed` when nothing has a reward."""
    state = GroupState.FAILED if not any(reward is not None for reward in rewards) else GroupState.READY
    kept = {} if state == GroupState.READY else {"min_policy_version": None, "max_policy_version": None}
    group = make_group(run, rewards=rewards, **({"state": state} | kept | columns))
    with store.beyond_rights():
        Rollout.objects.filter(group=group).update(spans=spans)
        if error is not None:
            failed = Rollout.objects.filter(group=group, reward=None)
            failed.update(error=error, error_kind=error["kind"])
    return group


def earlier(seconds: float) -> Any:
    return timezone.now() - timedelta(seconds=seconds)


def fault(kind: str = "environment", name: str = "ValueError", message: str = "no such tool") -> dict[str, str]:
    return {"kind": kind, "type": name, "message": message}


def test_each_version_has_its_groups_failures_durations_and_shares() -> None:
    run = make_run()
    spans = [["model", 0.0, 6.0], ["tools", 6.0, 3.0], ["scoring", 9.0, 1.0]]
    play(run, [1.0, 0.0], spans=spans, environment_version="1", settled_at=earlier(30))
    play(run, [None], environment_version="2", settled_at=earlier(20))
    play(run, [1.0], environment_version="2", settled_at=earlier(10))
    [played] = environments.of_run(run)
    newer, older = played.versions
    assert (newer.version, newer.groups, newer.failed_share, newer.episodes, newer.median_s) == ("2", 2, 0.5, 0, None)
    assert (older.version, older.groups, older.failed, older.episodes) == ("1", 1, 0, 2)
    assert (older.median_s, older.p95_s) == (10.0, 10.0)
    assert (older.model_s, older.tools_s, older.scoring_s) == (12.0, 6.0, 2.0)


def test_errors_are_counted_by_kind_and_type_with_the_newest_text_and_its_group() -> None:
    run = make_run()
    play(run, [None, None], error=fault(message="old"), settled_at=earlier(30))
    newest = play(run, [1.0, None], error=fault(message="new"), settled_at=earlier(10))
    play(run, [None], error=fault("tool", "TimeoutError"), settled_at=earlier(20))
    [played] = environments.of_run(run)
    first, second = played.versions[0].faults
    assert (first.kind, first.type, first.rollouts, first.groups) == ("environment", "ValueError", 3, 2)
    assert (first.message, first.group_key, first.index) == ("new", newest.key, 1)
    assert (second.kind, second.type, second.rollouts) == ("tool", "TimeoutError", 1)


def test_only_the_newest_groups_of_the_run_itself_count() -> None:
    run, other = make_run(), make_run()
    play(other, [None], error=fault())
    play(run, [None], error=fault(), settled_at=earlier(3_600))
    environment = run.environments.get()
    ScoredGroup.objects.bulk_create(
        ScoredGroup(
            run=run,
            environment=environment,
            problem_index=index,
            state=GroupState.STALE,
            settled_at=timezone.now(),
        )
        for index in range(environments.NEWEST_GROUPS)
    )
    [played] = environments.of_run(run)
    assert [(version.groups, version.faults) for version in played.versions] == [(environments.NEWEST_GROUPS, [])]


def test_figures_are_found_whatever_shape_the_spans_and_the_error_have() -> None:
    run = make_run()
    play(run, [1.0], spans=[])
    play(run, [None], error={"kind": "environment"})
    [played] = environments.of_run(run)
    assert played.versions[0].episodes == 0
    assert [(fault.type, fault.message) for fault in played.versions[0].faults] == [("", "")]


def test_the_page_shows_the_share_of_time_and_leads_to_a_group_that_broke(client: Client) -> None:
    run = make_run()
    play(run, [1.0], spans=[["model", 0.0, 3.0], ["tools", 3.0, 1.0]])
    group = play(run, [1.0, None], error=fault(message="no such tool"))
    shown = panel(body(client, run))
    assert "the newest 200 groups" in shown
    assert "policy 75 %, tools 25 %" in shown
    assert f"{reverse('group', args=[run.key, group.key])}#r1" in shown
    assert "1 rollout of 1 group" in shown
    assert "no such tool" in shown


def test_errors_and_names_of_others_stay_text(client: Client) -> None:
    run = make_run()
    play(run, [None], error=fault(name=SCRIPT, message=f"{SCRIPT}\u202e"), environment_version=SCRIPT)
    shown = panel(body(client, run))
    assert "<script>alert" not in shown
    assert "<img src=x" not in shown
    assert shown.count("&lt;script&gt;") == 3
    assert "\u202e" not in shown
    assert "U+202E" in shown


def test_an_environment_that_let_others_go_first_says_why(client: Client) -> None:
    run = make_run()
    RunEnvironment.objects.filter(run=run).update(passed=34)
    play(run, [1.0], settled_at=earlier(60))
    assert "34 times another environment went first: drivers were playing" in panel(body(client, run))
    play(run, [None], error=fault("policy", "ReadTimeout"), settled_at=earlier(30))
    assert "drivers were playing" in panel(body(client, run)), "the policy's fault closes no window"
    play(run, [None], error=fault())
    assert "its groups fail, so each driver plays one at a time" in panel(body(client, run))


def test_an_environment_whose_episodes_a_limit_ends_says_which(client: Client) -> None:
    run = make_run(overrides={"sampling.max_turns": 3})
    played = play(run, [1.0, 0.0, 0.0])
    assert "of its newest episodes" not in panel(body(client, run))
    with store.beyond_rights():
        Rollout.objects.filter(group=played, reward=0.0).update(stop_reason="turns")
    shown = panel(body(client, run))
    assert "67 % of its newest episodes ran out of turns: max_turns is 3." in shown
    assert "were cut off" not in shown


def test_an_environment_without_groups_says_so_and_is_not_said_to_have_passed(client: Client) -> None:
    shown = panel(body(client, make_run()))
    assert "None of these groups is of it" in shown
    assert "went first" not in shown


def test_the_page_says_where_an_environment_plays(client: Client) -> None:
    run = make_run()
    run.config["environments"][0] |= {"label": "small", "python": "games"}
    with store.beyond_rights():
        Run.objects.filter(pk=run.pk).update(config=run.config)
        RunEnvironment.objects.filter(run=run).update(name="small")
    shown = panel(body(client, run))
    assert "small" in shown
    assert "reverse_text, in games" in shown


def test_a_supervised_run_has_the_panel_only_if_it_is_evaluated(client: Client) -> None:
    assert "run-environments" not in body(client, make_run(preset="reverse-text-sft"))
    evaluated = make_run(preset="reverse-text-sft", overrides={"evaluation.every": 5, "evaluation.problems": 4})
    assert "run-environments" in body(client, evaluated)


def report(run: Run, holder: str = "a", **counts: int) -> None:
    loads.report(run, holder=holder, **({"sessions": 0, "queued": 0, "asking": 0, "scoring": 0, "tokens": 0} | counts))


def test_what_all_drivers_are_busy_with_is_added_up_against_their_limits() -> None:
    run = make_run(overrides={"workers.max_tokens_in_flight": 1_000})
    report(run, "a", sessions=10, asking=4, queued=1, scoring=2, tokens=900)
    report(run, "b", sessions=20, asking=20, tokens=600)
    report(make_run(), sessions=99)
    found = environments.in_flight(run)
    assert (found.drivers, found.sessions, found.asking, found.elsewhere) == (2, 30, 24, 6)
    assert (found.queued, found.scoring, found.tokens, found.most_tokens) == (1, 2, 1_500, 2_000)
    assert found.tokens_share == 0.75


def test_a_driver_that_fell_silent_is_not_counted_by_the_clock_of_the_database(client: Client) -> None:
    run = make_run()
    report(run, sessions=5)
    assert "Open sessions" in body(client, run)
    DriverLoad.objects.update(reported_at=Now() - Value(timedelta(seconds=environments.FRESH_S + 1)))
    assert "no driver has reported within 15 s" in body(client, run)


def test_the_live_parts_of_the_page_carry_both_regions(client: Client) -> None:
    run = make_run()
    report(run, sessions=7, asking=3, queued=2)
    shown = body(client, run, "run-live", view="overview")
    for region in ("run-in-flight", "run-environments"):
        assert f'id="{region}"' in shown
    assert "At tools or queued" in shown


@pytest.mark.parametrize("state", [RunState.PENDING, RunState.FINISHED])
def test_where_nothing_can_be_in_flight_the_line_is_hidden(client: Client, state: RunState) -> None:
    page = body(client, make_run(state=state))
    assert "Open sessions" not in page
    assert "no driver has reported" not in page
    assert 'aria-label="In flight" hidden' in " ".join(page.split())


def test_the_queries_read_only_the_newest_groups_and_their_rollouts() -> None:
    """Their plans begin with the index of the newest groups, and go on by the index of a group's rollouts."""
    run = make_run()
    bounds = {"run_ids": [run.pk], "environment_ids": None, "together": False}
    bounds |= {"groups": 200, "faults": 40, "characters": 400}
    with connection.cursor() as cursor:
        # What is nearly empty may as well be read whole and sorted.
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off")
        for name in ("environment_groups", "environment_faults"):
            cursor.execute(f"EXPLAIN {load(name)}", bounds)
            plan = "\n".join(line for (line,) in cursor.fetchall())
            assert "group_recent" in plan
            assert "rollout_index_once_per_group" in plan
            assert re.search(r"Index Cond: \(.*group_id = newest(_1)?\.id", plan)


def test_an_environment_with_pools_says_how_many_problems_are_where(client: Client) -> None:
    run = make_run(overrides={"environments.0.problems": 40, "environments.0.pools": {}})
    environment = run.environments.get()
    RunEnvironment.objects.filter(pk=environment.pk).update(problems=40, unseen=4)
    for index, (pool, rate) in enumerate([("new", None), ("easy", 1.0), ("normal", 0.5), ("normal", 0.4)]):
        KnownProblem.objects.create(
            environment=environment,
            problem_index=index,
            pool=pool,
            solve_rate=rate,
            groups=int(rate is not None),
            turn=0,
        )
    page = client.get(reverse("run", args=[run.key])).content.decode()
    assert "Problems: 1 easy, 2 normal, 1 not scored yet, 36 never played." in page
