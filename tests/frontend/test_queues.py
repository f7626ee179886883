"""Queues are made, looked at and worked through on pages, by curators alone."""

import html
import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from rollouts.models import Label, LabelQueue, QueueTurn, Role, Run, ScoredGroup, Verb
from rollouts.services.curation import acts, filters, labels, queues
from tests.factories import make_user, somebody
from tests.rollouts import story

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    run = story.launch()
    story.submit(run, [story.scored(key) for key in "abc"], actor="api:t")
    return run


def signed_in(role: Role, name: str = "") -> Client:
    client = Client()
    client.force_login(make_user(name or f"the-{role}", role=role))
    return client


@pytest.fixture
def curator() -> Client:
    return signed_in(Role.CURATOR)


def read(client: Client, name: str, *args: Any) -> str:
    answer = client.get(reverse(name, args=args))
    assert answer.status_code == 200
    return html.unescape(answer.content.decode())


def send(client: Client, route: str, *args: Any, status: int = 200, **form: Any) -> str:
    answer = client.post(reverse(route, args=args), form, follow=True)
    assert answer.status_code == status
    return html.unescape(answer.content.decode())


def begin(client: Client, queue: LabelQueue) -> str:
    """Take an item; returns its turn."""
    page = send(client, "queue-take", queue.key)
    return page.split('name="turn"')[1].split('value="')[1].split('"')[0]


def test_a_queue_is_made_from_a_form_that_a_link_fills_in(curator: Client, run: Run) -> None:
    page = curator.get(reverse("queues"), {"run": run.key, "min_reward": "0.5"}).content.decode()
    assert f'value="{run.key}"' in page
    form = {"name": "Loops", "project": run.project.slug, "run": run.key, "min_reward": "0.5", "tags": "loop, hack"}
    page = send(curator, "queue-make", **form, guideline="Is it a loop?", is_blind="on", words_per_item="2")
    queue = LabelQueue.objects.get()
    assert (queue.name, queue.tags, queue.is_blind, queue.words_per_item) == ("Loops", ["loop", "hack"], True, 2)
    assert filters.filter_of(queue) == filters.QueueFilter(run=run.key, min_reward=0.5)
    assert "Is it a loop?" in page
    assert "has 3 items so far" in page
    page = send(curator, "queue-make", **(form | {"name": "None", "min_reward": "5"}))
    assert "has no items so far" in page


def test_a_list_that_ends_early_says_so(curator: Client, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    queues.create(run.project, name="older", actor="user:cy")
    assert "The newest" not in curator.get(reverse("queues")).content.decode()
    monkeypatch.setattr("frontend.pages.queues.views.SHOWN", 1)
    queues.create(run.project, name="newer", actor="user:cy")
    page = curator.get(reverse("queues")).content.decode()
    assert (">newer<" in page, ">older<" in page, "The newest 1;" in page) == (True, False, True)


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ({"name": ""}, "must have 1 to 100 characters"),
        ({"min_reward": "much"}, "must be a number"),
        ({"share": "2"}, "must be above 0 and at most 1"),
        ({"run": "nobodys"}, "is no run of this project"),
        ({"environment": "e" * 300}, "characters"),
        ({"error": "fate"}, "must be one of"),
        ({"state": "rejected"}, "must be one of"),
        ({"run": "\0", "environment": "\0"}, "is no run of this project"),
    ],
)
def test_a_queue_that_makes_no_sense_is_refused_with_what_was_typed(
    curator: Client, run: Run, form: dict[str, str], told: str
) -> None:
    page = send(curator, "queue-make", status=422, **({"name": "Q", "project": run.project.slug} | form))
    assert told in page
    assert 0 < page.find('class="notice error"') < page.index("<h1>")
    assert all(value.replace("\0", "\ufffd") in page for value in form.values())
    assert not LabelQueue.objects.exists()


def test_one_item_after_another_gets_its_word(curator: Client, run: Run) -> None:
    queue = queues.create(run.project, name="q", actor="user:cy", tags=["loop"], on_reject="reject")
    turn = begin(curator, queue)
    page = send(curator, "queue-say", queue.key, turn=turn, verdict="reject", tag="loop", note="it loops", score="-1")
    assert ">b<" in page.replace("\n", "")
    [said] = Label.objects.all()
    assert (said.verdict, said.tags, said.note, said.score, said.group.key) == ("reject", ["loop"], "it loops", -1, "a")
    assert said.seconds is not None
    assert ScoredGroup.objects.get(key="a").state == "rejected"
    send(curator, "queue-undo", queue.key)
    assert ScoredGroup.objects.get(key="a").state == "ready"
    assert "1 said" not in read(curator, "queue-annotate", queue.key)


def test_a_reload_shows_the_same_item_and_takes_none(curator: Client, run: Run) -> None:
    queue = queues.create(run.project, name="q", actor="user:cy")
    assert "Nothing is yours now" in read(curator, "queue-annotate", queue.key)
    turn = begin(curator, queue)
    assert turn in read(curator, "queue-annotate", queue.key)
    assert turn in read(curator, "queue-annotate", queue.key)


def test_a_score_that_is_no_number_leaves_the_item(curator: Client, run: Run) -> None:
    queue = queues.create(run.project, name="q", actor="user:cy")
    turn = begin(curator, queue)
    page = send(curator, "queue-say", queue.key, turn=turn, verdict="accept", score="high")
    assert "a score is a number" in page
    assert turn in page


def test_a_word_on_an_item_that_stood_open_for_days_is_stored(curator: Client, run: Run) -> None:
    queue = queues.create(run.project, name="q", actor="user:cy")
    turn = begin(curator, queue)
    QueueTurn.objects.filter(key=turn).update(taken_at=timezone.now() - timedelta(days=3))
    send(curator, "queue-say", queue.key, turn=turn, verdict="accept")
    assert Label.objects.get().seconds == labels.MAX_SECONDS


def test_a_queue_is_blind_if_it_says_so(curator: Client, run: Run) -> None:
    other = signed_in(Role.CURATOR, "di")
    for name, is_blind in (("seeing", False), ("blind", True)):
        queue = queues.create(run.project, name=name, actor="user:cy", is_blind=is_blind, words_per_item=2)
        send(curator, "queue-say", queue.key, turn=begin(curator, queue), verdict="accept", note=f"said in {name}")
        begin(other, queue)
        assert (f"said in {name}" in read(other, "queue-annotate", queue.key)) != is_blind
        assert (f"said in {name}" in read(other, "group", run.key, "a")) != is_blind
        assert (f"said in {name}" in read(other, "run-people", run.key)) != is_blind
    queues.close(queue)
    assert "said in blind" in read(other, "run-people", run.key)


def test_figures_of_a_blind_queue_are_hidden_from_those_who_are_given_its_items(curator: Client, run: Run) -> None:
    other, lead = signed_in(Role.CURATOR, "di"), signed_in(Role.ADMIN)
    people = ["di", "the-curator"]
    queue = queues.create(run.project, name="q", actor="user:cy", is_blind=True, words_per_item=2, people=people)
    for client in (curator, other):
        send(client, "queue-say", queue.key, turn=begin(client, queue), verdict="accept", tag="loop")
    pages = [read(client, "queue", queue.key) for client in (curator, other, lead)]
    assert ["Krippendorff's alpha" in page for page in pages] == [False, False, True]
    assert ["until it is closed" in page for page in pages] == [True, True, False]
    assert ["user:di" in page for page in pages] == [False, False, True]
    queues.assign(queue, [])
    assert "Krippendorff" not in read(lead, "queue", queue.key)
    queues.close(queue)
    assert "Krippendorff" in read(curator, "queue", queue.key)


def test_an_empty_queue_says_so(curator: Client, run: Run) -> None:
    queue = queues.create(run.project, name="q", actor="user:cy", filter=filters.QueueFilter(min_reward=9))
    assert "There is nothing to look at now" in send(curator, "queue-take", queue.key)


def test_the_guideline_is_changed_and_the_queue_closed(curator: Client, run: Run) -> None:
    queue = queues.create(run.project, name="q", actor="user:cy", guideline="<i>first</i>")
    page = send(curator, "queue-guide", queue.key, guideline="second")
    assert "Version 2" in page
    assert "<i>first</i>" not in curator.get(reverse("queue", args=[queue.key])).content.decode()
    assert "The queue is closed" in send(curator, "queue-close", queue.key)
    assert "nothing is given out any more" in send(curator, "queue-take", queue.key)


@pytest.mark.parametrize("is_blind", [False, True])
def test_the_annotator_of_a_closed_queue_says_so_and_offers_no_undo(curator: Client, run: Run, is_blind: bool) -> None:
    queue = queues.create(run.project, name="q", actor="user:cy", is_blind=is_blind)
    send(curator, "queue-say", queue.key, turn=begin(curator, queue), verdict="accept")
    page = read(curator, "queue-annotate", queue.key)
    assert "Undo" in page
    turn = page.split('name="turn"')[1].split('value="')[1].split('"')[0]
    queues.close(queue)
    page = read(curator, "queue-annotate", queue.key)
    assert "The queue is closed" in page
    assert "Undo" not in page
    assert (turn in page) != is_blind
    assert "what was said in it stays" in send(curator, "queue-undo", queue.key)
    send(curator, "queue-say", queue.key, turn=turn, verdict="accept")
    assert Label.objects.count() == (1 if is_blind else 2)


def test_what_was_typed_is_there_again_where_it_is_refused(curator: Client, run: Run) -> None:
    queue = queues.create(run.project, name="q", actor="user:cy")
    page = send(curator, "queue-assign", queue.key, status=422, people="the-curator, nobody")
    assert 'value="the-curator, nobody"' in page
    page = send(curator, "queue-guide", queue.key, status=422, guideline="Is it \0 a loop?" + "!" * 20_000)
    assert "a loop?!" in page
    assert "must have at most" in page


def test_a_line_break_is_one_character_as_where_it_was_typed(curator: Client, run: Run) -> None:
    queue = queues.create(run.project, name="q", actor="user:cy")
    typed, posted = "x\n" * 10_000, "x\r\n" * 10_000
    send(curator, "queue-guide", queue.key, guideline=posted)
    assert queue.guidelines.latest("version").text == typed.strip()
    form = {"name": "other", "project": run.project.slug, "guideline": posted}
    send(curator, "queue-make", **form)
    assert LabelQueue.objects.get(name="other").guidelines.get().text == typed.strip()
    send(curator, "queue-say", queue.key, turn=begin(curator, queue), verdict="accept", note=posted[:3_000])
    assert Label.objects.get().note == typed[:2_000].strip()


def test_a_viewer_looks_at_queues_and_at_no_items(run: Run) -> None:
    queue = queues.create(run.project, name="q", actor="user:cy")
    viewer = signed_in(Role.VIEWER)
    assert "Make a queue" not in read(viewer, "queues")
    assert "Look at items" not in read(viewer, "queues") + read(viewer, "queue", queue.key)
    assert "Look at items" in read(signed_in(Role.CURATOR), "queues")
    assert viewer.get(reverse("queue-annotate", args=[queue.key])).status_code == 403
    assert viewer.post(reverse("queue-take", args=[queue.key])).status_code == 403
    assert viewer.post(reverse("queue-make"), {"name": "mine", "project": run.project.slug}).status_code == 403


def look(client: Client, queue: LabelQueue, verb: str) -> str:
    """The page of what an act on all at once would be on."""
    return html.unescape(client.get(reverse("queue-bulk", args=[queue.key]), {"verb": verb}).content.decode())


def looked_at(page: str) -> dict[str, str]:
    """What its form sends by itself."""
    return dict(re.findall(r'<input type="hidden" name="(verb|groups|count)" value="([^"]*)">', page))


def test_all_that_a_filter_lets_in_is_rejected_as_one_act_after_a_look(curator: Client, run: Run) -> None:
    queue = queues.create(run.project, name="q", actor="user:cy", filter=filters.QueueFilter(run=run.key))
    page = look(curator, queue, "reject")
    assert "Applies to 3 groups" in page
    assert not run.acts.exists()
    page = send(curator, "queue-bulk", queue.key, **looked_at(page), note="all bad")
    assert "Reject: 3 groups changed, as one act." in page
    assert set(ScoredGroup.objects.values_list("state", flat=True)) == {"rejected"}
    [act] = run.acts.all()
    assert (act.items.count(), act.note) == (3, "all bad")
    send(curator, "queue-bulk", queue.key, **looked_at(look(curator, queue, "restore")))
    assert set(ScoredGroup.objects.values_list("state", flat=True)) == {"ready"}


def test_what_came_after_the_look_is_looked_at_again(curator: Client, run: Run) -> None:
    queue = queues.create(run.project, name="q", actor="user:cy", filter=filters.QueueFilter(run=run.key))
    page = look(curator, queue, "reject")
    # As many groups as before, of which one is another.
    group = run.groups.earliest("pk")
    acts.perform(run, Verb.EXCLUDE, [group.pk], user=somebody("di"), actor="user:di")
    story.submit(run, [story.scored("late")], actor="api:t")
    told = send(curator, "queue-bulk", queue.key, status=409, **looked_at(page), note="all bad")
    assert "The filter lets in 3 groups now, others than you looked at: look again, and confirm." in told
    assert "others than you looked at" in send(curator, "queue-bulk", queue.key, status=409, verb="reject")
    assert run.acts.count() == 1
    assert 'value="all bad"' in told
    assert "3 groups changed" in send(curator, "queue-bulk", queue.key, **looked_at(told), note="all bad")


def test_one_act_is_on_groups_of_one_run(curator: Client, run: Run) -> None:
    queue = queues.create(run.project, name="q", actor="user:cy")
    page = curator.get(reverse("queue-bulk", args=[queue.key]), {"verb": "reject"}, follow=True).content.decode()
    assert "One act is on groups of one run" in page
