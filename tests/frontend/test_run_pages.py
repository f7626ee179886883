"""The pages of one run, empty and full."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from frontend import numbers
from rollouts.models import Address, Attempt, ReplicaKind, Role, Run, RunEnvironment
from rollouts.reasons import Reason, ReasonCode
from rollouts.selectors import pages
from rollouts.states import EvaluationState, GroupState, ReplicaState, RunState
from tests.factories import (
    make_batch,
    make_evaluation,
    make_event,
    make_group,
    make_lively_run,
    make_metrics,
    make_policy_version,
    make_project,
    make_replica,
    make_run,
    make_user,
)


def body(client: Client, run: Run, name: str = "run", **query: str) -> str:
    response = client.get(reverse(name, args=[run.key]), query)
    assert response.status_code == 200
    return response.content.decode()


def test_a_pending_run_says_what_it_waits_for_in_every_part(client: Client) -> None:
    page = body(client, make_run(state=RunState.PENDING))
    assert "Waiting for the reconciler" in page
    assert "No group yet" in page
    assert "No rollouts yet" in page
    assert "None yet: the reconciler starts them" in page


def test_the_rollouts_are_found_under_their_old_address(client: Client) -> None:
    run = make_run()
    moved = client.get(f"/runs/{run.key}/samples/?state=ready")
    assert (moved.status_code, moved["Location"]) == (302, f"{reverse('run-rollouts', args=[run.key])}?state=ready")


def test_a_running_run_shows_its_progress_and_when_it_ends(client: Client) -> None:
    page = body(client, make_lively_run(steps=40))
    assert "<b>40</b> of 80 steps" in page
    assert "8.4 s per step" in page
    assert "left, done about" in page
    assert "policy v40 is live" in page


def test_a_run_that_is_to_go_on_for_ever_has_pages_and_no_date_of_its_end(client: Client) -> None:
    endless = make_run(next_step=5, max_steps=2**31 - 1)
    make_metrics(endless, "time/step", [130.0] * 5)
    assert pages.progress(endless).ends_at is None
    page = body(client, endless)
    assert "2 min 10 s per step" in page
    assert "done about" not in page


def test_no_policy_of_a_run_that_is_over_is_said_to_be_live(client: Client) -> None:
    run = make_lively_run(steps=40)
    Run.objects.filter(pk=run.pk).update(state=RunState.STOPPED, finished_at=run.created_at)
    page = body(client, run)
    assert "policy v40 was the last" in page
    assert "is live" not in page


def test_the_tiles_compare_with_the_beginning(client: Client) -> None:
    page = body(client, make_lively_run(steps=40))
    assert "since the first step" in page
    assert "0.34 at v0" in page
    assert "tokens/s" in page


@pytest.mark.parametrize(("preset", "key"), [("reverse-text-rl", "reward/mean"), ("reverse-text-sft", "loss/mean")])
def test_a_tile_compares_with_the_first_step_itself_however_long_the_run_is(
    client: Client, preset: str, key: str
) -> None:
    run = make_run(preset=preset, next_step=200, max_steps=200)
    make_metrics(run, key, [3.0, *[1.0] * 198, 0.5])
    assert "\N{MINUS SIGN}2.5 since the first step" in body(client, run)
    alone = make_run(preset=preset)
    make_metrics(alone, key, [3.0])
    assert "since the first step" not in body(client, alone)


def test_the_tile_of_waits_is_of_the_newest_step(client: Client) -> None:
    run = make_run(next_step=5)
    make_metrics(run, "time/step", [10.0] * 5)
    make_metrics(run, "time/wait_for_policy", [30.0])
    assert "generation 0 %" in body(client, run)
    make_metrics(run, "time/wait_for_policy", [3.0, 9.0], first_step=4)  # and at a version that no step has ended on
    assert "generation 30 %" in body(client, run)


def test_an_evaluation_that_is_being_played_says_how_far_it_is(client: Client) -> None:
    run = make_run()
    make_evaluation(run, 0, state=EvaluationState.PLAYING, cursor=12)
    assert "v0: 12 of 64 handed out" in body(client, run)


def test_an_evaluation_that_was_not_played_to_its_end_is_compared_with_none(client: Client) -> None:
    run = make_run()
    make_evaluation(run, 0, 0.9, state=EvaluationState.EXPIRED, figures={"problems": 10})
    assert "10 of 64 problems" in body(client, run)
    whole = make_evaluation(run, 5, 0.5)
    assert "10 of 64 problems" not in body(client, run)
    [line] = pages.list_evaluations(run)
    assert (line.first, line.last, line.change) == (whole, whole, None)


def test_every_chart_names_its_keys_before_there_is_a_point(client: Client) -> None:
    page = body(client, make_run())
    for key in ("reward/mean", "eval/reverse_text/reward", "time/wait_for_policy", "mismatch_kl/mean"):
        assert key in page


def test_a_supervised_run_has_a_loss_and_no_ledger(client: Client) -> None:
    run = make_run(preset="reverse-text-sft", next_step=10)
    make_metrics(run, "loss/mean", [3.0, 2.0, 1.5])
    page = body(client, run)
    assert "Loss now" in page
    assert "run-ledger" not in page


def test_a_run_that_learns_preferences_shows_them_beside_the_held_out_loss(client: Client) -> None:
    plain = body(client, make_run(preset="reverse-text-sft"))
    assert "loss/validation" not in plain
    assert "preference/" not in plain
    pairs = {"data.solutions": False, "data.path": "pairs.jsonl", "data.preference.beta": 0.1}
    overrides = {"data.validation.share": 0.1, **pairs}
    page = body(client, make_run(preset="reverse-text-sft", overrides=overrides))
    for key in ("loss/mean", "loss/validation", "preference/accuracy/mean", "preference/margin/validation"):
        assert key in page
    assert "per pair" in page


def test_the_ledger_counts_every_group_once_with_why_it_was_dropped(client: Client) -> None:
    run = make_run(next_step=1)
    make_batch(run, 0, [make_group(run), make_group(run)])
    make_group(run)
    make_group(run, state=GroupState.PLAYING)
    make_group(run, state=GroupState.HELD, review_until=run.created_at)
    make_group(run, state=GroupState.STALE, state_reason=Reason(ReasonCode.LAGGED, limit=2, step=9))
    make_group(run, state=GroupState.FILTERED, state_reason="all rewards equal")
    response = client.get(reverse("run", args=[run.key]))
    ledger = response.context["ledger"]
    assert ledger.generated == 7 == sum(stage.groups for stage in ledger.stages) + ledger.dropped
    assert [(stage.state, stage.groups) for stage in ledger.stages] == [
        ("playing", 1), ("held", 1), ("ready", 1), ("batched", 0), ("trained", 2),
    ]  # fmt: skip
    assert {(drop.state, drop.reason, drop.groups) for drop in ledger.drops} == {
        ("stale", "lag over 2 steps", 1), ("filtered", "all rewards equal", 1),
    }  # fmt: skip
    assert ledger.dropped == 2
    assert '<span class="stage-name">held</span>' in response.content.decode()
    assert '>held<span class="num">1</span>' in body(client, run, "run-rollouts")
    make_group(unheld := make_run())
    assert '<span class="stage-name">held</span>' not in body(client, unheld)


def test_rollouts_show_prompt_completion_reward_and_why_they_ended(client: Client) -> None:
    run = make_run()
    make_group(
        run,
        rewards=[1.0, 0.0, None],
        completions=["tac", "t" * 600, ""],
        stop_reasons=["stop", "length", "error"],
        version=3,
    )
    page = body(client, run, "run-rollouts")
    for text in ("Reverse: cat", "tac", "1.00", "cut off", "100 more", "policy error", "no answer in 60 s", "v3"):
        assert text in page


def test_rollouts_are_filtered_by_state_and_purpose(client: Client) -> None:
    run = make_run()
    make_group(run, prompt="to train on")
    make_group(run, prompt="thrown away", state=GroupState.FILTERED)
    make_group(run, prompt="held out", state=GroupState.EVALUATED, evaluation=make_evaluation(run, 0, 0.5))
    assert "thrown away" not in body(client, run, "run-rollouts", state="ready")
    assert "to train on" not in body(client, run, "run-rollouts", state="filtered")
    held_out = body(client, run, "run-rollouts", purpose="eval")
    assert "held out" in held_out
    assert "to train on" not in held_out
    assert "No group matches this filter" in body(client, run, "run-rollouts", state="stale")


def test_rollouts_are_paged_without_a_gap_or_a_repeat(client: Client) -> None:
    run = make_run()
    keys = [make_group(run, key=f"group-{number:02}", rewards=[0.5]).key for number in range(45)]
    seen: list[str] = []
    before = ""
    while True:
        context = client.get(reverse("run-rollouts", args=[run.key]), {"before": before}).context
        seen += [line.group.key for line in context["groups"]]
        if context["older"] is None:
            break
        before = str(context["older"])
    assert seen == keys[::-1]


def test_replicas_show_their_state_reason_and_last_answer(client: Client) -> None:
    run = make_run()
    make_replica(run, loaded_version=7)
    make_replica(run, slot=1, state=ReplicaState.LOST, exit_code=-9, state_reason="its process died")
    make_replica(run, kind=ReplicaKind.TRAINER, state=ReplicaState.STARTING, answered_at=None)
    page = body(client, run)
    for text in ("serves v7", "exit code -9", "its process died", "no answer yet"):
        assert text in page


def test_a_job_that_waits_for_its_node_says_for_what(client: Client) -> None:
    run = make_run()
    why = "job 812 is queued: others have their turn before it"
    make_replica(run, state=ReplicaState.STARTING, answered_at=None, reason_code="queued", reason_params={"why": why})
    page = body(client, run)
    assert why in page
    assert "asked for" in page


def test_a_replica_of_another_policy_says_which(client: Client) -> None:
    run = make_run(overrides={"policies": [{"name": "rival", "model": "start"}]})
    make_replica(run, loaded_version=7)
    assert "frozen" not in body(client, run)
    rival = make_replica(run, policy="rival")
    page = body(client, run)
    assert f"inference-rival-0-{rival.pk}" in page
    assert '<span class="tag">frozen</span>' in page
    assert "serves the policy rival" in page


def test_events_name_what_they_are_about_and_leave_out_single_groups(client: Client) -> None:
    run = make_run()
    version = make_policy_version(run, 41)
    make_event(
        run, kind="policyversion", object_id=version.pk, to="live", reason="published in 0.06 s", actor="reconciler"
    )
    make_event(run, kind="scoredgroup", object_id=make_group(run).pk, to="ready", reason="not shown here")
    for name in ("run", "run-events"):
        page = body(client, run, name)
        assert "policy version 41" in page
        assert "published in 0.06 s" in page
        assert "not shown here" not in page


def test_the_config_shows_where_each_value_came_from(client: Client) -> None:
    run = make_run(overrides={"optimizer.lr": 5e-4})
    rows = {
        row.key: row
        for _, rows in client.get(reverse("run-config", args=[run.key])).context["sections"]
        for row in rows
    }
    assert (rows["optimizer.lr"].value, str(rows["optimizer.lr"].origin)) == ("0.0005", "command line")
    assert str(rows["batch.batch_size"].origin) == "preset reverse-text-rl"
    assert str(rows["seed"].origin) == "default"
    assert set(rows) == set(run.config_origins)


@pytest.mark.parametrize(
    ("view", "regions"),
    [
        (
            "overview",
            [
                *("run-status", "run-tiles", "run-in-flight", "run-ledger", "run-environments"),
                *("run-recent", "run-replicas", "run-recent-events"),
            ],
        ),
        ("rollouts", ["run-status", "run-chips", "run-rollouts"]),
        ("events", ["run-status", "run-events"]),
        ("people", ["run-status", "run-people"]),
        ("config", ["run-status"]),
        ("connect", ["run-status", "run-sessions", "run-clients"]),
    ],
)
def test_the_live_part_answers_each_region_of_the_page_for_swapping(
    client: Client, view: str, regions: list[str]
) -> None:
    run = make_lively_run(steps=3)
    part = body(client, run, "run-live", view=view)
    page = body(client, run, {"overview": "run"}.get(view, f"run-{view}"))
    assert part.count('hx-swap-oob="morph"') == len(regions)
    for region in regions:
        assert f'id="{region}"' in part
        assert f'id="{region}"' in page
    assert "metric-chart" not in part
    assert "view=" not in part, "a link in it is one of the page"


def test_who_takes_part_is_followed_by_operators_alone_and_without_the_address(client: Client) -> None:
    run = make_run()
    client.force_login(make_user("olga", role=Role.OPERATOR))
    part = body(client, run, "run-live", view="connect")
    assert "None is connected" in part
    assert run.address.key not in part
    client.force_login(make_user("vera", role=Role.VIEWER))
    assert "None is connected" not in body(client, run, "run-live", view="connect")


def test_the_page_says_what_it_is_as_of(client: Client) -> None:
    run = make_run()
    event = make_event(run)
    assert f"as of seq {numbers.count(event.pk)}" in body(client, run)


def test_a_failed_run_says_why_and_offers_no_stop(client: Client) -> None:
    page = body(client, make_run(state=RunState.FAILED, state_reason="the model could not be loaded"))
    assert "Failed: the model could not be loaded" in page
    assert "Stop…" not in page
    assert "Clone" in page


def test_pages_allow_no_inline_code_and_no_foreign_host(client: Client) -> None:
    response = client.get(reverse("run", args=[make_run().key]))
    policy = response["Content-Security-Policy"]
    page = response.content.decode()
    assert "unsafe" not in policy
    assert "style=" not in page
    assert "onclick=" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page


def test_an_operator_sees_how_an_agent_plays_the_policy(client: Client, settings: Any) -> None:
    run = make_run()
    page = client.get(f"/runs/{run.key}/connect/").content.decode()
    assert f'SessionClient("{settings.ROLLYARD_URL}", TOKEN, "{run.key}")' in page
    assert f"{settings.ROLLYARD_URL}/api/v1/runs/{run.key}/sessions" in page
    assert page.count("group=greet-$(date +%s)") == page.count("uuid4()") == 1, "a group that is whole takes no more"
    assert page.count("group_size") == 2, "a session without others trains nothing"
    settings.ROLLYARD_GATEWAY_URL = ""
    assert "No gateway runs here" in client.get(f"/runs/{run.key}/connect/").content.decode()


def test_an_operator_sees_how_to_connect_and_changes_the_address(client: Client) -> None:
    run = make_run(preset="external-trainer", state=RunState.STARTING, max_steps=9)
    client.force_login(make_user("olga", role=Role.OPERATOR))
    page = client.get(f"/runs/{run.key}/connect/").content.decode()
    assert f"serve --env.rollout_server_url {run.address.url}" in page
    client.post(f"/runs/{run.key}/connect/rotate/")
    assert run.address.url not in client.get(f"/runs/{run.key}/connect/").content.decode()


def test_commands_that_are_told_are_about_the_project_of_the_run(client: Client) -> None:
    client.force_login(User.objects.create_superuser("root"))
    default = make_run(project=make_project("default"))
    assert "--scope submit\n" in client.get(f"/runs/{default.key}/connect/").content.decode()
    run = make_run(project=make_project("lab"))
    page = client.get(f"/runs/{run.key}/connect/").content.decode()
    for scope in ("play", "submit", "train"):
        assert f"--scope {scope} --project lab" in page
    assert f"?run={run.key}&amp;project=lab#make" in client.get(f"/runs/{run.key}/people/").content.decode()


def test_the_page_says_who_answers_for_the_address_and_for_how_long(client: Client) -> None:
    olga = make_user("olga", role=Role.OPERATOR)
    run = make_run(preset="external-trainer", state=RunState.STARTING, max_steps=9, user=olga)
    client.force_login(make_user("otto", role=Role.OPERATOR))
    connect = f"/runs/{run.key}/connect/"
    page = client.get(connect).content.decode()
    assert "olga" in page
    assert "none yet" in page
    assert "It opens nothing" not in page
    olga.is_active = False
    olga.save()
    assert "It opens nothing" in client.get(connect).content.decode()
    client.post(f"{connect}renew/", {"days": "2"})
    page = client.get(connect).content.decode()
    assert "It opens nothing" not in page
    assert run.address.url in page, "it stayed as it is"
    client.post(f"{connect}rotate/", {"days": "2", "resets_on_get": "on"})
    assert "for old clients" in client.get(connect).content.decode()
    assert Address.objects.get().resets_on_get


@pytest.mark.parametrize("days", ["0", "9999", "x", "-1", "٣", "1" * 5000])
def test_days_that_are_none_change_nothing(client: Client, days: str) -> None:
    run = make_run(preset="external-trainer", state=RunState.STARTING, max_steps=9)
    client.force_login(make_user("olga", role=Role.OPERATOR))
    for verb in ("renew", "rotate"):
        page = client.post(f"/runs/{run.key}/connect/{verb}/", {"days": days}, follow=True).content.decode()
        assert "1 to 365 days" in page
    assert Address.objects.get().key == run.address.key


def test_a_viewer_does_not_see_the_address(client: Client) -> None:
    run = make_run(preset="external-trainer", state=RunState.STARTING, max_steps=9)
    client.force_login(make_user("vera", role=Role.VIEWER))
    assert client.get(f"/runs/{run.key}/connect/").status_code == 403
    assert client.post(f"/runs/{run.key}/connect/rotate/").status_code == 403
    assert run.address.key not in client.get(f"/runs/{run.key}/").content.decode()


def test_a_run_that_is_stuck_says_why(client: Client) -> None:
    run = make_run(preset="external-trainer", state=RunState.RUNNING, max_steps=9)
    attempt = Attempt.objects.create(
        run=run,
        number=1,
        batch_size=3,
        max_token_len=64,
        save_checkpoint_interval=0,
        starting_step=0,
        num_steps=9,
    )
    RunEnvironment.objects.create(run=run, name="words")
    for _ in range(attempt.batch_size):
        make_group(run)
    client.force_login(make_user("olga", role=Role.OPERATOR))
    page = client.get(f"/runs/{run.key}/").content.decode()
    assert "Stuck: groups of 2 rollouts cannot make exactly 3." in page
