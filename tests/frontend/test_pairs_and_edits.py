"""Pairs side by side, corrections, disagreements that one word decides, and queues for some people, on pages."""

import html
import json
import re
from typing import Any
from urllib.parse import parse_qsl

import pytest
from django.test import Client
from django.urls import reverse

from frontend import differing
from rollouts.models import DatasetMember, Label, LabelQueue, QueueItem, Role, Rollout, Run
from rollouts.services.curation import filters, labels, queues, reviews
from tests.factories import somebody
from tests.frontend.test_queues import begin, read, send, signed_in
from tests.rollouts import story

pytestmark = pytest.mark.django_db
BETTER = "It reverses <b>every</b> word."
WORSE = "It reverses no word."


@pytest.fixture
def run() -> Run:
    run = story.launch()
    groups = [story.scored(key) for key in "ab"]
    for group in groups:
        for rollout, reply in zip(group.rollouts, (BETTER, WORSE), strict=True):
            rollout.messages = [{"role": "user", "content": "what?"}, {"role": "assistant", "content": reply}]  # type: ignore[list-item]
    story.submit(run, groups, actor="api:t")
    return run


@pytest.fixture
def curator() -> Client:
    return signed_in(Role.CURATOR)


def make(run: Run, **options: Any) -> LabelQueue:
    return queues.create(run.project, name=options.pop("name", "q"), actor="user:cy", **options)


def sides(page: str) -> tuple[str, str]:
    left, right = page.split('id="right"')
    return left.split('id="left"')[1], right


def test_two_rollouts_stand_side_by_side_with_the_words_that_differ_marked(curator: Client, run: Run) -> None:
    queue = make(run, unit="pair")
    begin(curator, queue)
    page = curator.get(reverse("queue-annotate", args=[queue.key])).content.decode()
    assert "&lt;<mark>" in page or "<mark>&lt;" in page
    assert "<b>every" not in page
    assert "<mark>no </mark>" in page
    assert page.count("what?") == 1
    assert "reward" not in sides(page)[0].split("annotate-side")[0]


@pytest.mark.parametrize("side", ["left", "right", "tie"])
def test_the_side_is_what_the_person_saw_whichever_rollout_stood_there(curator: Client, run: Run, side: str) -> None:
    queue = make(run, unit="pair")
    for _ in range(2):
        turn = begin(curator, queue)
        left = sides(read(curator, "queue-annotate", queue.key))[0]
        best_is_left = "every" in left
        send(curator, "queue-say", queue.key, turn=turn, side=side, note="n")
        said = Label.objects.latest("id")
        meant = {"left": "first" if best_is_left else "other", "right": "other" if best_is_left else "first"}
        assert (said.verdict, said.preference, said.note) == ("accept", meant.get(side, "tie"), "n")


def test_a_pair_may_be_skipped_and_no_other_side_exists(curator: Client, run: Run) -> None:
    queue = make(run, unit="pair")
    turn = begin(curator, queue)
    assert "Nothing was stored" in send(curator, "queue-say", queue.key, turn=turn, side="above")
    send(curator, "queue-say", queue.key, turn=turn, verdict="skip")
    assert Label.objects.get().preference == ""


def test_the_last_reply_is_corrected_and_stands_beside_its_original(curator: Client, run: Run) -> None:
    queue = make(run, unit="rollout")
    turn = begin(curator, queue)
    assert BETTER in read(curator, "queue-annotate", queue.key).split('name="edited"')[1]
    form = {"turn": turn, "verdict": "accept", "edited": "It reverses\r\neach <i>word</i>."}
    send(curator, "queue-say", queue.key, **form)
    assert Label.objects.get().edited[-1] == {"role": "assistant", "content": "It reverses\neach <i>word</i>."}
    page = curator.get(reverse("group", args=[run.key, "a"])).content.decode()
    assert "Corrected by user:the-curator" in page
    assert "<i>word" not in page
    assert "<mark>each" in page
    assert Rollout.objects.get(group__key="a", index=0).messages[1]["content"] == BETTER


def test_the_thoughts_before_a_corrected_reply_are_corrected_or_left_out(curator: Client) -> None:
    run, group = story.launch(), story.scored("a")
    thought: Any = {"role": "assistant", "content": "five", "reasoning_content": "so\nfive"}
    group.rollouts[0].messages = [{"role": "user", "content": "what?"}, thought]  # type: ignore[list-item]
    story.submit(run, [group], actor="api:t")
    queue = make(run, unit="rollout")
    turn = begin(curator, queue)
    assert "so\nfive" in read(curator, "queue-annotate", queue.key).split('name="thoughts"')[1]
    send(curator, "queue-say", queue.key, turn=turn, verdict="accept", edited="four", thoughts="")
    assert Label.objects.latest("id").edited[-1] == {"role": "assistant", "content": "four"}


def test_a_reply_that_is_left_as_it_is_is_no_correction(curator: Client, run: Run) -> None:
    queue = make(run, unit="rollout")
    send(curator, "queue-say", queue.key, turn=begin(curator, queue), verdict="accept", edited=BETTER)
    assert Label.objects.get().edited is None


def test_a_correction_that_cannot_be_is_refused_and_leaves_the_item(curator: Client, run: Run) -> None:
    queue = make(run, unit="rollout")
    turn = begin(curator, queue)
    page = send(curator, "queue-say", queue.key, turn=turn, verdict="accept", edited="x" * 300_000)
    assert "edited must have at most" in page
    assert turn in page
    assert not Label.objects.exists()


def test_a_group_is_not_corrected(curator: Client, run: Run) -> None:
    queue = make(run)
    begin(curator, queue)
    assert 'name="edited"' not in read(curator, "queue-annotate", queue.key)


def test_where_people_disagree_their_words_are_shown_and_one_more_decides(curator: Client, run: Run) -> None:
    other, judge = signed_in(Role.CURATOR, "di"), signed_in(Role.CURATOR, "eve")
    source = make(run, words_per_item=2)
    for client, verdict, note in ((curator, "accept", "it is right"), (other, "reject", "it is wrong")):
        send(client, "queue-say", source.key, turn=begin(client, source), verdict=verdict, note=note)
    page = read(curator, "queue", source.key)
    assert f"?source={source.key}" in page
    assert "1 not" in page.replace("\n", " ")
    page = send(curator, "queue-make", name="Decide", project=run.project.slug, source=source.key)
    queue = LabelQueue.objects.get(name="Decide")
    begin(judge, queue)
    page = read(judge, "queue-annotate", queue.key)
    assert "it is right" in page
    assert "it is wrong" in page
    assert "Your word decides" in page
    send(judge, "queue-say", queue.key, turn=begin(judge, queue), verdict="reject")
    page = " ".join(read(judge, "group", run.key, "a").split())
    assert "adjudicated by user:eve" in page
    assert "1 adjudicated" in " ".join(read(judge, "queue", source.key).split())


def test_a_queue_of_pairs_leads_to_a_dataset_of_pairs(curator: Client, run: Run) -> None:
    queue = make(run, unit="pair")
    [query] = re.findall(r"(\?queue=[^#]+)#make", read(curator, "queue", queue.key))
    send(curator, "queue-say", queue.key, turn=begin(curator, queue), side="left")
    page = curator.get(reverse("datasets") + query)
    form = page.context["form"]
    send(
        curator, "dataset-make", **form.values | {"name": "better", "accepted": "on" if form.ticked["accepted"] else ""}
    )
    assert DatasetMember.objects.get().other is not None


def test_a_blind_queue_that_is_open_is_not_adjudicated_and_says_why(curator: Client, run: Run) -> None:
    source = make(run, words_per_item=2, is_blind=True)
    assert "?source=" not in read(curator, "queue", source.key)
    form = {"name": "Decide", "project": run.project.slug, "source": source.key}
    assert "is blind and open" in send(curator, "queue-make", status=422, **form)


def test_whoever_is_not_assigned_is_told_who_is(curator: Client, run: Run) -> None:
    other = signed_in(Role.CURATOR, "di")
    queue = make(run, people=["di"])
    page = read(curator, "queue-annotate", queue.key)
    assert "given to others" in page
    assert "di look at this queue" in page
    assert "given to others" in send(curator, "queue-take", queue.key)
    assert begin(other, queue)
    assert "is none" in send(curator, "queue-assign", queue.key, status=422, people="di, nobody")
    send(curator, "queue-assign", queue.key, people="the-curator, di")
    assert begin(curator, queue)


def test_a_form_has_every_filter_and_says_what_is_wrong_with_each(curator: Client, run: Run) -> None:
    form = {"name": "F", "project": run.project.slug, "text": "no word", "min_gap": "0.5", "min_version": "0"}
    send(curator, "queue-make", **form, max_gap="1", max_version="3", unit="pair")
    queue = LabelQueue.objects.get()
    chosen = filters.QueueFilter(text="no word", min_gap=0.5, max_gap=1.0, min_version=0, max_version=3)
    assert (filters.filter_of(queue), queue.unit) == (chosen, "pair")
    bad = {"text": "x" * 201, "min_version": "1.5", "people": "nobody", "on_reject": "reject", "unit": "pair"}
    page = send(curator, "queue-make", status=422, **form | bad | {"min_version": "1"})
    assert page.count('class="field-error"') == 3
    assert "must be a whole number" in send(curator, "queue-make", status=422, **form | bad)


def test_a_line_of_the_calibration_leads_to_its_words_and_to_a_queue_of_them(curator: Client, run: Run) -> None:
    for key in "ab":
        group = run.groups.get(key=key)
        for index, verdict in enumerate(("accept", "reject")):
            note = f"said of {key}{index}"
            labels.say(group, user=somebody(), actor="user:s", verdict=verdict, rollout=index, note=note)
        labels.say(group, user=somebody(), actor="user:s", verdict="accept", rollout=0, other=1, preference="first")
    page = read(curator, "run-people", run.key)
    assert 'href="?environment=reverse_text#said"' in page
    assert 'href="?min_version=0&max_version=0#said"' in page
    answer = curator.get(reverse("run-people", args=[run.key]), {"min_reward": "0.5", "max_reward": "1"})
    page = html.unescape(answer.content.decode())
    assert "said of a0" in page
    assert "said of a1" not in page
    assert f"run={run.key}&project=words&unit=rollout&groups=b%2C+a#make" in page
    for nonsense in ({"min_reward": "nan", "max_version": "x"}, {"min_reward": "9" * 400}):
        answer = curator.get(reverse("run-people", args=[run.key]), nonsense)
        assert answer.status_code == 200
        assert "Only where" not in answer.content.decode()


@pytest.mark.parametrize("review", [{"rewards": "verdicts"}, {"rewards": "scores"}])
def test_what_people_reject_for_all_its_reward_is_in_the_queue_of_its_line(
    curator: Client, review: dict[str, Any]
) -> None:
    run = story.launch(environments=[{"name": "reverse_text", "review": review}])
    story.submit(run, [story.scored("a", rewards=(0.9, 0.9))], actor="api:t")
    group = run.groups.get()
    for rollout in (0, 1, None):
        reviews.say(group, user=somebody(), actor="user:s", verdict="reject", rollout=rollout)
    line = {"min_reward": "0.9", "max_reward": "0.9"}
    page = curator.get(reverse("run-people", args=[run.key]), line).content.decode()
    [link] = re.findall(r'href="[^"?]*\?([^"#]*)#make">make a queue of these', page)
    send(curator, "queue-make", name="q", **dict(parse_qsl(html.unescape(link))))
    items = QueueItem.objects.filter(group=group).order_by("id")
    assert list(items.values_list("rollout__index", flat=True)) == [0, 1]


def test_a_link_to_a_queue_names_the_newest_groups_whose_keys_a_form_can_say(curator: Client) -> None:
    run = story.launch()
    keys = [*(f"{number:02}{'é' * 60}" for number in range(12)), "a,b", " c ", "d"]
    story.submit(run, [story.scored(key) for key in keys], actor="api:t")
    for group in run.groups.all():
        labels.say(group, user=somebody(), actor="user:s", verdict="accept")
    page = html.unescape(
        curator.get(reverse("run-people", args=[run.key]), {"environment": "reverse_text"}).content.decode()
    )
    [link] = re.findall(r'href="[^"?]*\?([^"#]*)#make">make a queue of these', page)
    assert dict(parse_qsl(link))["groups"] == ", ".join(["d", *reversed(keys[2:12])])
    assert len(link) < 4_200


def test_texts_are_compared_word_by_word_and_long_ones_not_at_all() -> None:
    pair = differing.pieces("one two three", "one 2 three four")
    assert pair is not None
    assert ["".join(piece.text for piece in side) for side in pair] == ["one two three", "one 2 three four"]
    assert [[piece.text for piece in side if piece.is_own] for side in pair] == [["two "], ["2 ", "four"]]
    assert differing.pieces("a " * differing.MOST_WORDS + "a", "b") is None
    one, other = differing.compared([{"role": "assistant", "content": "a"}], [])
    assert (one[0].pieces, other) == ([], [])
    assert json.dumps(one[0].message) == '{"role": "assistant", "content": "a"}'
