"""What people say of groups and do with them, on the page of a group and on that of a run."""

import html
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from rollouts.models import Label, Role, Run, ScoredGroup
from tests.factories import make_user
from tests.rollouts import story

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    run = story.launch()
    story.submit(run, [story.scored("a"), story.scored("b")], actor="api:t")
    return run


def signed_in(role: Role) -> Client:
    client = Client()
    client.force_login(make_user(f"the-{role}", role=role))
    return client


@pytest.fixture
def curator() -> Client:
    return signed_in(Role.CURATOR)


def send(client: Client, name: str, run: Run, status: int = 200, **form: Any) -> str:
    answer = client.post(reverse(name, args=[run.key]), {"group": "a"} | form, follow=True)
    assert answer.status_code == status
    return html.unescape(answer.content.decode())


def test_a_curator_rejects_a_group_and_everybody_reads_who_and_why(curator: Client, run: Run) -> None:
    page = send(curator, "run-act", run, verb="reject", note="it loops")
    assert "Rejected: it enters no batch any more" in page
    assert ScoredGroup.objects.get(key="a").state == "rejected"
    seen = signed_in(Role.VIEWER).get(reverse("group", args=[run.key, "a"])).content.decode()
    assert "user:the-curator" in seen
    assert "it loops" in seen
    assert "rejected by user:the-curator: it loops" in seen


def test_a_group_that_is_rejected_too_late_shows_its_step(curator: Client, run: Run) -> None:
    story.step(run, story.register(run).epoch, 0)
    assert "Rejected too late" in send(curator, "run-act", run, verb="reject")
    page = curator.get(reverse("group", args=[run.key, "a"])).content.decode()
    assert "Rejected after it was taken into the batch of step 0, which was trained." in page
    assert "rejected after step 0" in curator.get(reverse("run-rollouts", args=[run.key])).content.decode()


def test_an_act_is_undone_on_the_page_of_the_run(curator: Client, run: Run) -> None:
    send(curator, "run-act", run, verb="reject")
    [act] = run.acts.all()
    people = reverse("run-people", args=[run.key])
    assert reverse("run-act-undo", args=[run.key, act.key]) in curator.get(people).content.decode()
    answer = curator.post(reverse("run-act-undo", args=[run.key, act.key]), follow=True).content.decode()
    assert "Undone, of 1 group." in answer
    assert reverse("run-act-undo", args=[run.key, act.key]) not in answer
    assert ScoredGroup.objects.get(key="a").state == "ready"


def test_doing_what_is_done_says_so(curator: Client, run: Run) -> None:
    send(curator, "run-act", run, verb="exclude")
    assert "Nothing changed: it is so already." in send(curator, "run-act", run, verb="exclude")


def test_a_word_is_shown_and_taken_back(curator: Client, run: Run) -> None:
    page = send(
        curator, "run-label", run, verdict="accept", rollout="1", score="0.5", tags="terse, right ,", note="<b>fine</b>"
    )
    [said] = Label.objects.all()
    assert (said.tags, said.score, said.rollout and said.rollout.index) == (["terse", "right"], 0.5, 1)
    assert 'href="#r1"' in page
    assert "<b>fine</b>" in page  # unescaped by the test: on the page it is text
    assert "<b>fine</b>" not in curator.get(reverse("run-people", args=[run.key])).content.decode()
    assert "Taken back." in send(curator, "run-label", run, verdict="withdrawn", rollout="1")
    assert "Nobody said anything" in curator.get(reverse("run-people", args=[run.key])).content.decode()


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ({"verdict": "accept", "score": "five"}, "a score is a number"),
        ({"verdict": "accept", "score": "nan"}, "score must be a finite number"),
        ({"verdict": "accept", "rollout": "7"}, "rollout must be one of the group's 2 rollouts"),
        ({"verdict": "fine"}, "verdict must be one of accept, reject, skip, withdrawn"),
    ],
)
def test_a_word_that_makes_no_sense_is_refused(curator: Client, run: Run, form: dict[str, str], told: str) -> None:
    typed = {"rollout": "1", "tags": "loop, hack", "note": 'it "exploits" the judge'} | form
    page = send(curator, "run-label", run, 422, **typed)
    assert told in page
    assert f'value="{typed["note"]}"' in page, "what was typed is there still"
    assert 'value="loop, hack"' in page
    assert f'value="{form.get("score", "")}"' in page
    assert ('<option value="1" selected>' in page) == (typed["rollout"] == "1")
    assert not Label.objects.exists()


def test_what_no_text_may_hold_is_refused(curator: Client, run: Run) -> None:
    assert curator.post(reverse("run-label", args=[run.key]), {"group": "\0", "verdict": "accept"}).status_code == 404
    assert "holds a NUL" in send(curator, "run-label", run, 422, verdict="accept", note="\0")
    assert "The note holds a NUL" in send(curator, "run-act", run, verb="reject", note="\0")


def test_whoever_looks_only_has_no_forms(run: Run) -> None:
    viewer = signed_in(Role.VIEWER)
    page = viewer.get(reverse("group", args=[run.key, "a"])).content.decode()
    assert "Reject from training" not in page
    assert viewer.post(reverse("run-act", args=[run.key]), {"group": "a", "verb": "reject"}).status_code == 403
    assert ScoredGroup.objects.get(key="a").state == "ready"


def test_a_group_that_waits_for_people_goes_on_by_scores_on_its_page(curator: Client) -> None:
    run = story.launch(environments=[{"name": "reverse_text", "review": {}}])
    story.submit(run, [story.scored("a")], actor="api:t")
    page = curator.get(reverse("group", args=[run.key, "a"])).content.decode()
    assert "It waits for people until" in page
    assert "1 group waits for a person" in html.unescape(curator.get(reverse("run", args=[run.key])).content.decode())
    asked = html.unescape(curator.get(reverse("run-people", args=[run.key])).content.decode())
    assert "1 group waits for a word" in asked
    assert f"?run={run.key}&project={run.project.slug}&state=held&unit=rollout" in asked
    for rollout, score in enumerate((0.25, 0.5)):
        page = send(curator, "run-label", run, verdict="accept", rollout=rollout, score=score)
    assert ScoredGroup.objects.get(run=run, key="a").state == "ready"
    assert "reward by people" in page
    assert "the environment's reward 1.00" in page
    assert "It waits for people" not in page
