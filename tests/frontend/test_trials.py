"""Trying an environment: the form, and the page on which an episode grows."""

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from rollouts.models import Run, Trial
from rollouts.services import endpoints
from rollouts.services.runs import trials
from tests.factories import make_project, make_replica, make_run

PAGE = reverse("environment", args=["wordle"])
TRY = reverse("environment-try", args=["wordle"])


@pytest.fixture
def run(operator: User) -> Run:
    run = make_run(name="lively")
    make_replica(run)
    return run


FILLED = {"args": "{}", "split": "train", "problem_index": "3", "temperature": "", "max_turns": ""}


def filled(run: Run) -> dict[str, str]:
    return FILLED | {"run": run.key}


def test_whoever_may_launch_is_offered_the_runs_whose_policy_is_live(client: Client, run: Run) -> None:
    make_run(name="without-servers")
    page = client.get(PAGE).content.decode()
    assert "Try one episode" in page
    assert "lively" in page
    assert "without-servers" not in page


def test_a_run_that_plays_it_comes_first_with_its_arguments(client: Client, run: Run) -> None:
    make_replica(make_run(name="another", overrides={"environments": [{"name": "calculator"}]}))
    form = client.get(reverse("environment", args=["reverse_text"])).context["trial_form"]
    assert [each.name for each in form.answering] == ["lively", "another"]
    assert json.loads(form.args) == {"min_length": 3, "max_length": 6, "words": 1}


def test_a_viewer_sees_what_was_tried_and_no_form(client: Client, viewer_client: Client, run: Run) -> None:
    client.post(TRY, filled(run))
    page = viewer_client.get(PAGE).content.decode()
    assert "Try one episode" not in page
    trial = Trial.objects.get()
    assert (where := reverse("trial", args=[run.key, trial.key])) in page
    assert viewer_client.get(where).status_code == 200
    assert viewer_client.post(TRY, filled(run)).status_code == 403


def test_the_form_leads_to_the_trial_which_grows_turn_by_turn(client: Client, run: Run) -> None:
    answer = client.post(TRY, filled(run), follow=True)
    trial = Trial.objects.get()
    assert answer.redirect_chain == [(reverse("trial", args=[run.key, trial.key]), 302)]
    assert "Waits for a driver" in answer.content.decode()
    [claimed] = trials.claim(run, holder="a:1", limit=1)
    trials.tell(claimed, {"messages": [{"role": "user", "content": "<script>guess</script>"}]})
    part = client.get(answer.redirect_chain[0][0], headers={"HX-Request": "true"}).content.decode()
    assert part.lstrip().startswith("<section")
    assert "&lt;script&gt;guess" in part
    assert "hx-get" in part
    trials.finish(
        claimed, {"reward": 0.25, "metrics": {"guesses": 2.0, "items": 3.0}, "messages": [], "stop_reason": "length"}
    )
    done = client.get(answer.redirect_chain[0][0]).content.decode()
    assert "0.25" in done
    assert "guesses" in done
    assert "cut off" in done
    assert "hx-get" not in done


def test_how_a_trial_broke_is_shown(client: Client, run: Run) -> None:
    client.post(TRY, filled(run))
    [claimed] = trials.claim(run, holder="a:1", limit=1)
    error = {"kind": "environment", "type": "ValueError", "message": "no such word", "stderr": "Segmentation fault"}
    trials.finish(claimed, {"error": error, "stop_reason": "error"})
    page = client.get(reverse("trial", args=[run.key, claimed.key])).content.decode()
    assert "ValueError: no such word" in page
    assert "Segmentation fault" in page


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"args": "[1]"}, "must be a JSON object"),
        ({"args": "{"}, "must be a JSON object"),
        ({"args": '{"lenght": 5}'}, "is not an argument of wordle"),
        ({"problem_index": "-1"}, "must be a whole number"),
        ({"problem_index": "9" * 30}, "must be 0 to"),
        ({"temperature": "warm"}, "must be a number"),
        ({"temperature": "NaN"}, "must be a number"),
        ({"split": "test"}, "must be train or eval"),
        ({"max_turns": "0"}, "must be 1 to"),
        ({"max_turns": "many"}, "must be a whole number"),
        ({"run": ""}, "choose one, or an endpoint"),
    ],
)
def test_what_is_wrong_is_said_at_its_field_and_what_was_typed_stays(
    client: Client, run: Run, changes: dict[str, str], said: str
) -> None:
    answer = client.post(TRY, filled(run) | changes)
    assert answer.status_code == 422
    page = answer.content.decode()
    assert said in page
    assert 'value="3"' in page or "problem_index" in changes
    assert not Trial.objects.exists()


def test_a_second_trial_waits_for_the_first(client: Client, run: Run) -> None:
    client.post(TRY, filled(run))
    answer = client.post(TRY, filled(run))
    assert answer.status_code == 422
    assert "still being played" in answer.content.decode()


def test_a_run_of_another_project_is_not_there(stranger_client: Client, client: Client, run: Run) -> None:
    assert stranger_client.post(TRY, filled(run)).status_code == 404
    client.post(TRY, filled(run))
    assert stranger_client.get(reverse("trial", args=[run.key, Trial.objects.get().key])).status_code == 404
    hidden = make_run(name="their-run", project=make_project("others"))
    make_replica(hidden)
    assert "their-run" not in client.get(PAGE).content.decode()


def test_an_endpoint_plays_alone_where_no_run_is_live(client: Client, operator: User) -> None:
    assert "Play it" not in client.get(PAGE).content.decode()
    endpoints.add(name="teacher", base_url="http://127.0.0.1:9/v1", model="m", is_for_all=True, actor="user:root")
    form = client.get(PAGE)
    assert "none: an endpoint plays alone" in form.content.decode()
    [project] = form.context["trial_form"].projects
    asked = FILLED | {"run": "", "endpoint": "teacher", "project": project.slug}
    answer = client.post(TRY, asked, follow=True)
    trial = Trial.objects.get()
    assert answer.redirect_chain == [(reverse("trial", args=[trial.run.key, trial.key]), 302)]
    assert (trial.run.kind, trial.run.project, trial.endpoint) == ("eval", project, "teacher")
    assert "Waits for a driver" in answer.content.decode()
    assert client.get(reverse("run", args=[trial.run.key])).status_code == 200


def test_an_endpoint_of_others_plays_nothing_alone(client: Client, operator: User) -> None:
    theirs = make_project("others")
    given: dict[str, Any] = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "actor": "user:root"}
    endpoints.add(name="teacher", projects=[theirs], **given)
    asked = FILLED | {"run": "", "endpoint": "teacher"}
    assert client.post(TRY, asked | {"project": theirs.slug}).status_code == 403
    answer = client.post(TRY, asked | {"project": make_project().slug})
    assert answer.status_code == 422
    assert "has no endpoint teacher" in answer.content.decode()
    assert not Run.objects.exists()


def test_a_trial_is_sampled_as_the_run_samples_that_environment(client: Client, operator: User) -> None:
    run = make_run(overrides={"environments": [{"name": "wordle", "max_turns": 6, "max_tokens": 99}]})
    make_replica(run)
    client.post(TRY, filled(run))
    trial = Trial.objects.get()
    assert (trial.max_turns, trial.max_tokens) == (6, 99)
