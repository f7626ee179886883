"""Queues fill themselves with what their filter lets in, and give each item to as many people as it wants, one at a
time each."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from rollouts.errors import Conflict, Invalid, LeaseLost, NotFound, StateConflict
from rollouts.models import Act, Label, LabelQueue, QueueItem, QueueTurn, Run, ScoredGroup
from rollouts.selectors import label_queues
from rollouts.services.curation import acts, filling, labels, queues, turns
from rollouts.services.curation.filters import QueueFilter
from tests import store
from tests.factories import make_evaluation, make_group, make_project, make_run, somebody
from tests.rollouts import story

concurrent = pytest.mark.django_db(transaction=True)
pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    run = story.launch()
    submit(run, "a", "b", "c")
    return run


def submit(run: Run, *keys: str, **fields: Any) -> None:
    story.submit(run, [story.scored(key, **fields) for key in keys], actor="api:t")


def make(run: Run, **options: Any) -> LabelQueue:
    name = options.pop("name", "look")
    return queues.create(run.project, name=name, actor="user:cy", **options)


def keys(queue: LabelQueue) -> list[str]:
    return list(QueueItem.objects.filter(queue=queue).order_by("id").values_list("group__key", flat=True))


def answer(turn: QueueTurn | None, verdict: str = "accept", **said: Any) -> Label:
    assert turn is not None
    person: User = turn.person
    return turns.answer(turn, user=person, actor=f"user:{person}", verdict=verdict, **said)


def over(turn: QueueTurn) -> None:
    """Let the time of a turn be over."""
    past = timezone.now() - timedelta(days=1)
    QueueTurn.objects.filter(pk=turn.pk).update(taken_at=past, expires_at=past + timedelta(seconds=1))


def test_a_queue_fills_itself_as_groups_are_settled(run: Run) -> None:
    queue = make(run)
    assert filling.fill(queue) == 3
    assert filling.fill(queue) == 0
    submit(run, "d")
    assert filling.fill(queue) == 1
    assert keys(queue) == ["a", "b", "c", "d"]


def test_it_goes_on_where_a_page_ended(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "FILL", 2)
    queue = make(run)
    assert [filling.fill(queue) for _ in range(3)] == [2, 1, 0]
    submit(run, *"defgh")
    assert [filling.fill(queue) for _ in range(4)] == [1, 2, 2, 0]
    assert sorted(keys(queue)) == list("abcdefgh")


def test_a_group_that_says_an_earlier_moment_than_it_was_seen_at_is_found(run: Run) -> None:
    queue = make(run)
    filling.fill(queue)
    submit(run, "late")
    with store.beyond_rights():
        late = timezone.now() - timedelta(seconds=30)
        ScoredGroup.objects.filter(key="late").update(settled_at=late, state_at=late)
    assert filling.fill(queue) == 1


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ({}, "abcd"),
        ({"environment": "reverse_text"}, "abcd"),
        ({"environment": "other"}, ""),
        ({"state": "ready"}, "abcd"),
        ({"state": "trained"}, ""),
        ({"min_reward": 0.75}, "d"),
        ({"max_reward": 0.75}, "abc"),
        ({"equal_rewards": True}, "d"),
        ({"min_deviation": 0.4}, "abc"),
        ({"error": "tool"}, ""),
        ({"truncated": True}, ""),
        ({"min_tokens": 9}, "d"),
        ({"max_tokens": 8}, "abc"),
    ],
)
def test_a_filter_lets_in_what_it_says(run: Run, chosen: dict[str, Any], found: str) -> None:
    submit(run, "d", rewards=(0.8, 0.8, 0.8))  # which deviate by 1e-16, as they are rounded
    queue = make(run, filter=QueueFilter(**chosen))
    filling.fill(queue)
    assert "".join(sorted(keys(queue))) == found


def state_of(key: str) -> str:
    return ScoredGroup.objects.get(key=key).state


def test_a_queue_of_rollouts_holds_those_that_fit_themselves(run: Run) -> None:
    queue = make(run, unit="rollout", filter=QueueFilter(min_reward=0.5))
    assert filling.fill(queue) == 3
    assert set(QueueItem.objects.values_list("rollout__index", flat=True)) == {0}


def test_a_share_is_drawn_and_stays_the_same(run: Run) -> None:
    submit(run, *[f"g{number}" for number in range(97)])
    drawn = [make(run, name=name, filter=QueueFilter(share=0.3)) for name in ("one", "two")]
    for queue in drawn:
        filling.fill(queue)
    assert keys(drawn[0]) == keys(drawn[1])
    assert 20 <= len(keys(drawn[0])) <= 40


@pytest.mark.parametrize(
    ("chosen", "found"),
    [({}, ["a", "b", "c"]), ({"state": "evaluated"}, ["e"]), ({"run": True, "groups": ["e"]}, ["e"])],
)
def test_what_evaluations_of_a_training_run_played_is_in_if_it_is_asked_for(
    run: Run, chosen: dict[str, Any], found: list[str]
) -> None:
    make_group(run, evaluation=make_evaluation(run, 0), state="evaluated", key="e")
    queue = make(run, filter=QueueFilter(**(chosen | {"run": run.key} if "run" in chosen else chosen)))
    filling.fill(queue)
    assert keys(queue) == found


def test_of_a_run_that_only_evaluates_all_is_in(run: Run) -> None:
    alone = make_run(kind="eval", project=run.project)
    make_group(alone, evaluation=make_evaluation(alone, 0), state="evaluated", key="e")
    queue = make(run, filter=QueueFilter(run=alone.key))
    filling.fill(queue)
    assert keys(queue) == ["e"]


def test_groups_of_other_projects_and_of_other_runs_stay_out(run: Run) -> None:
    foreign, other = story.launch(project=make_project("elsewhere")), story.launch()
    submit(foreign, "x")
    submit(other, "y")
    everything, one = make(run), make(run, name="one", filter=QueueFilter(run=other.key))
    filling.fill(everything)
    filling.fill(one)
    assert (sorted(keys(everything)), keys(one)) == (["a", "b", "c", "y"], ["y"])
    with pytest.raises(Invalid, match="is no run of this project"):
        make(run, name="foreign", filter=QueueFilter(run=foreign.key))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"name": ""}, "name"),
        ({"name": "a\u202eb"}, "name"),
        ({"unit": "seat"}, "unit"),
        ({"tags": list("abcdefghij")}, "tags"),
        ({"tags": [""]}, "tags"),
        ({"words_per_item": 0}, "words_per_item"),
        ({"on_reject": "delete"}, "on_reject"),
        ({"lease_s": 1}, "lease_s"),
        ({"guideline": "\0"}, "guideline"),
        ({"filter": QueueFilter(error="bad luck")}, "filter.error"),
        ({"filter": QueueFilter(min_reward=float("nan"))}, "filter.min_reward"),
        ({"filter": QueueFilter(max_gap=float("inf"))}, "filter.max_gap"),
        ({"filter": QueueFilter(min_version=-(2**63))}, "filter.min_version"),
        ({"filter": QueueFilter(environment="e" * 101)}, "filter.environment"),
        ({"filter": QueueFilter(text="t" * 201)}, "filter.text"),
        ({"filter": QueueFilter(text="\0")}, "filter.text"),
    ],
)
def test_a_queue_that_makes_no_sense_is_not_made(run: Run, options: dict[str, Any], named: str) -> None:
    with pytest.raises(Invalid) as refused:
        make(run, **options)
    assert list(refused.value.fields) == [named]
    assert not LabelQueue.objects.exists()


def test_a_name_is_taken_once_in_a_project(run: Run) -> None:
    make(run)
    with pytest.raises(Conflict, match="a queue named look already"):
        make(run)


def test_people_get_the_oldest_item_that_nobody_is_at(run: Run) -> None:
    queue = make(run)
    first, second = turns.take(queue, somebody("cy")), turns.take(queue, somebody("di"))
    assert first
    assert second
    assert (first.item.group.key, second.item.group.key) == ("a", "b")
    assert turns.take(queue, somebody("cy")) == first  # resumed, not another one
    answer(first)
    third = turns.take(queue, somebody("cy"))
    assert third
    assert third.item.group.key == "c"
    assert turns.take(queue, somebody("eve")) is None


def test_a_word_is_a_label_by_the_newest_guideline(run: Run) -> None:
    queue = make(run, guideline="be strict", tags=["loop"])
    queues.guide(queue, "be fair", actor="user:cy")
    said = answer(turns.take(queue, somebody("cy")), "accept", tags=["loop"], seconds=2.0)
    assert said.guideline is not None
    assert (said.guideline.version, said.guideline.queue, said.group.key, said.rollout) == (2, queue, "a", None)
    assert not QueueItem.objects.get(group__key="a").is_open


def test_of_a_queue_of_rollouts_the_rollout_is_meant(run: Run) -> None:
    said = answer(turns.take(make(run, unit="rollout"), somebody("cy")))
    assert said.rollout is not None
    assert said.rollout.index == 0


def test_an_item_whose_time_is_over_goes_to_somebody_else(run: Run) -> None:
    queue = make(run)
    first = turns.take(queue, somebody("cy"))
    assert first is not None
    over(first)
    second = turns.take(queue, somebody("di"))
    assert second is not None
    assert second.item == first.item
    with pytest.raises(LeaseLost):
        answer(first)
    answer(second)
    assert Label.objects.count() == 1
    again = turns.take(queue, somebody("cy"))
    assert again is not None
    assert again.item != first.item


def test_who_comes_late_to_an_item_that_nobody_else_has_says_the_word_all_the_same(run: Run) -> None:
    turn = turns.take(make(run), somebody("cy"))
    assert turn is not None
    over(turn)
    assert answer(turn).verdict == "accept"


def test_an_item_gets_as_many_words_as_it_wants_each_of_another_person(run: Run) -> None:
    queue = make(run, words_per_item=2)
    people = [somebody(name) for name in ("cy", "di", "eve")]
    taken = [turns.take(queue, person) for person in people]
    assert [turn and turn.item.group.key for turn in taken] == ["a", "a", "b"]
    for turn in taken:
        answer(turn)
    item = QueueItem.objects.get(group__key="a")
    assert (item.words, item.is_open) == (2, False)
    assert QueueItem.objects.get(group__key="b").is_open


def test_a_reject_does_what_the_queue_wants_and_undoing_undoes_both(run: Run) -> None:
    queue = make(run, on_reject="reject")
    turn = turns.take(queue, somebody("cy"))
    answer(turn, "reject", note="it loops")
    assert state_of("a") == "rejected"
    turns.take(queue, somebody("cy"))
    given_back = turns.undo(queue, somebody("cy"), actor="user:cy")
    assert given_back == turn
    assert state_of("a") == "ready"
    newest = Label.objects.get(superseded_by__isnull=True)
    assert (newest.verdict, QueueItem.objects.get(group__key="a").is_open) == ("withdrawn", True)
    answer(given_back, "accept")
    assert state_of("a") == "ready"


def test_what_is_said_in_a_queue_supersedes_nothing_that_was_said_elsewhere(run: Run) -> None:
    first, second = make(run), make(run, name="again")
    said = [answer(turns.take(queue, somebody("cy"))) for queue in (first, second)]
    said.append(labels.say(said[0].group, user=somebody("cy"), actor="user:cy", verdict="reject"))
    assert set(Label.objects.filter(superseded_by__isnull=True)) == set(said)


def test_a_reject_of_somebody_else_stands_when_one_is_taken_back(run: Run) -> None:
    queue = make(run, on_reject="reject", words_per_item=2)
    ada, bob = somebody("ada"), somebody("bob")
    for person in (ada, bob):
        answer(turns.take(queue, person), "reject")
    turns.undo(queue, ada, actor="user:ada")
    assert state_of("a") == "rejected"
    turns.undo(queue, bob, actor="user:bob")
    assert state_of("a") == "ready"
    assert Act.objects.filter(verb="undo").count() == 1


def test_a_reject_of_another_rollout_of_the_group_stands_as_well(run: Run) -> None:
    queue = make(run, on_reject="exclude", unit="rollout")
    people = [somebody("ada"), somebody("bob")]
    withheld = ScoredGroup.objects.filter(key="a").values_list("withheld", flat=True)
    for person in people:
        assert answer(turns.take(queue, person), "reject").group.key == "a"
    for person, still in zip(people, ("excluded", ""), strict=True):
        turns.undo(queue, person, actor=f"user:{person}")
        assert withheld.get() == still


def test_an_act_that_somebody_undid_meanwhile_is_not_undone_again(run: Run) -> None:
    queue = make(run, on_reject="reject")
    answer(turns.take(queue, somebody("cy")), "reject")
    act = Act.objects.get()
    acts.undo(act, user=somebody("di"), actor="user:di")
    turns.undo(queue, somebody("cy"), actor="user:cy")
    assert state_of("a") == "ready"
    assert Act.objects.count() == 2


def test_there_may_be_nothing_to_undo(run: Run) -> None:
    with pytest.raises(NotFound, match="no word of yours"):
        turns.undo(make(run), somebody("cy"), actor="user:cy")


def test_the_same_answer_again_is_one_word(run: Run) -> None:
    turn = turns.take(make(run), somebody("cy"))
    assert answer(turn) == answer(turn)
    assert QueueItem.objects.get(group__key="a").words == 1


def test_a_word_that_makes_no_sense_leaves_the_turn(run: Run) -> None:
    turn = turns.take(make(run), somebody("cy"))
    with pytest.raises(Invalid):
        answer(turn, "fine")
    assert answer(turn).verdict == "accept"


def test_a_closed_queue_gives_nothing_out(run: Run) -> None:
    queue = make(run)
    queues.close(queue)
    with pytest.raises(StateConflict, match="was closed"):
        turns.take(queue, somebody("cy"))


@pytest.mark.parametrize("is_blind", [False, True])
def test_of_a_closed_queue_no_word_is_taken_back(run: Run, is_blind: bool) -> None:
    queue, cy = make(run, is_blind=is_blind, on_reject="reject"), somebody("cy")
    said = answer(turns.take(queue, cy), "reject")
    queues.close(queue)
    with pytest.raises(StateConflict, match="was closed: what was said in it stays"):
        turns.undo(queue, cy, actor="user:cy")
    assert (Label.objects.get(), state_of("a")) == (said, "rejected")
    assert not QueueItem.objects.get(group__key="a").is_open


def test_who_is_at_an_item_when_its_queue_is_closed_still_says_the_word(run: Run) -> None:
    queue, cy = make(run), somebody("cy")
    turn = turns.take(queue, cy)
    queues.close(queue)
    assert label_queues.mine(queue, cy).turn == turn
    assert answer(turn).verdict == "accept"


def test_a_blind_queue_whose_words_may_be_read_takes_no_others(run: Run) -> None:
    queue, cy = make(run, is_blind=True, words_per_item=2), somebody("cy")
    turn = turns.take(queue, cy)
    said = answer(turns.take(queue, somebody("di")), "reject")
    queues.close(queue)
    with pytest.raises(StateConflict, match="its words may be read"):
        answer(turn)
    assert label_queues.mine(queue, cy).turn is None
    assert Label.objects.get() == said
    assert said.turn is not None
    assert answer(said.turn) == said  # as after an answer that was lost


@concurrent
def test_what_waits_while_a_blind_queue_is_closed_is_refused() -> None:
    run = story.launch()
    submit(run, "a")
    queue, cy, di = make(run, is_blind=True, words_per_item=2), somebody("cy"), somebody("di")
    said, turn = answer(turns.take(queue, cy)), turns.take(queue, di)
    with ThreadPoolExecutor(2) as pool:
        with transaction.atomic():
            QueueItem.objects.select_for_update().get()
            word = story.behind(pool, lambda: answer(turn))
            back = story.behind(pool, lambda: turns.undo(queue, cy, actor="user:cy"))
            queues.close(LabelQueue.objects.get())
        for refused in (word, back):
            with pytest.raises(StateConflict, match="was closed"):
                refused.result(10)
    assert Label.objects.get() == said


@concurrent
def test_a_word_and_its_act_are_undone_at_the_same_moment() -> None:
    run = story.launch()
    submit(run, "a")
    queue, cy = make(run, on_reject="reject"), somebody("cy")
    answer(turns.take(queue, cy), verdict="reject")
    act = Act.objects.get()
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            acts.lock(act)
            back = story.behind(pool, lambda: turns.undo(queue, cy, actor="user:cy"))
            acts.undo(act, user=cy, actor="user:cy")
        back.result(10)
    assert ScoredGroup.objects.get().withheld == ""
    assert QueueItem.objects.get().words == 0


@concurrent
def test_a_word_that_is_taken_back_twice_at_the_same_moment_is_taken_back_once() -> None:
    run = story.launch()
    submit(run, "a")
    queue = make(run, words_per_item=2)
    cy, di = somebody("cy"), somebody("di")
    for person in (cy, di):
        answer(turns.take(queue, person))
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            turns.undo(queue, cy, actor="user:cy")
            again = story.behind(pool, lambda: turns.undo(queue, cy, actor="user:cy"))
        with pytest.raises(Conflict, match="at the same moment"):
            again.result(10)
    assert QueueItem.objects.get().words == 1


@concurrent
@pytest.mark.parametrize("words", [1, 2])
def test_four_people_at_once_never_meet_and_each_item_gets_its_words(words: int) -> None:
    run = story.launch()
    submit(run, *[f"g{number}" for number in range(12)])
    queue = make(run, words_per_item=words)
    people = [somebody(name) for name in ("ann", "bob", "cy", "di")]

    def work(person: User) -> list[int]:
        done = []
        while (turn := turns.take(queue, person)) is not None:
            others = turn.item.turns.filter(label__isnull=True).exclude(person=person).count()
            assert others + turn.item.words < words
            answer(turn)
            done.append(turn.item_id)
        return done

    outcomes = story.together(*[lambda person=person: work(person) for person in people])
    assert [type(each) for each in outcomes] == [list] * 4, outcomes
    assert all(len(each) == len(set(each)) for each in outcomes)
    # Whoever found nothing while others held the last items has gone home; the rest is done by whoever comes again.
    for person in people:
        work(person)
    assert set(QueueItem.objects.values_list("words", "is_open")) == {(words, False)}
    assert Label.objects.count() == 12 * words
