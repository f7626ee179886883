"""What a filter asks of rollouts, which two of a group are compared, and what people disagree on."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from environments.types import Span, SpanKind
from rollouts.errors import Forbidden, Invalid
from rollouts.models import Label, LabelQueue, QueueItem, QueueTurn, Run, Verb
from rollouts.selectors import label_queues
from rollouts.services.curation import acts, filling, filters, queues, turns
from rollouts.services.curation.filters import QueueFilter
from tests import store
from tests.factories import make_project, make_user, somebody
from tests.rollouts import story

concurrent = pytest.mark.django_db(transaction=True)
pytestmark = pytest.mark.django_db


def replying(key: str, *replies: str, rewards: tuple[float, ...] = (1.0, 0.0), **fields: Any) -> Any:
    """A group whose rollouts say these things."""
    group = story.scored(key, rewards, **fields)
    for rollout, reply in zip(group.rollouts, replies, strict=True):
        rollout.messages = [{"role": "user", "content": "say it"}, {"role": "assistant", "content": reply}]
    return group


def make(run: Run, **options: Any) -> LabelQueue:
    return queues.create(run.project, name=options.pop("name", "look"), actor="user:cy", **options)


def keys(queue: LabelQueue) -> list[str]:
    return list(QueueItem.objects.filter(queue=queue).order_by("id").values_list("group__key", flat=True))


def pairs(queue: LabelQueue) -> list[tuple[int, int]]:
    items = QueueItem.objects.filter(queue=queue).order_by("id")
    return list(items.values_list("rollout__index", "other__index"))


def say(queue: LabelQueue, name: str, verdict: str = "accept", **said: Any) -> Label:
    """The next word of somebody."""
    person = somebody(name)
    turn = turns.take(queue, person)
    assert turn is not None
    return turns.answer(turn, user=person, actor=f"user:{name}", verdict=verdict, **said)


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ({"text": "loop"}, "a"),
        ({"text": "LOOP the loop"}, "a"),
        ({"text": "say it"}, ""),  # the prompt's
        ({"text": "100%"}, "b"),
        ({"text": "sAY Ünï\n_CODE"}, "c"),
        ({"text": "'; DROP TABLE rollouts_label; --"}, ""),
        ({"text": "inwardly"}, "d"),
        ({"text": "at first"}, "d"),
        ({"text": "you said"}, ""),
        ({"min_gap": 0.9}, "ac"),
        ({"max_gap": 0.5}, "bd"),
        ({"min_gap": 0.5, "max_gap": 0.5}, "b"),
        ({"min_gap": 0.0, "text": "no"}, "a"),
        ({"min_version": 1}, "c"),
        ({"max_version": 0}, "abdf"),
    ],
)
def test_a_filter_reads_what_the_policy_said_and_was_given_for_it(chosen: dict[str, Any], found: str) -> None:
    run = story.launch()
    thought = replying("d", "fine", "fine", rewards=(1.0, 1.0))
    thought.rollouts[0].messages[1]["reasoning_content"] = "I inwardly laugh"
    edited = [{"role": "user", "content": "you said"}, {"role": "assistant", "content": "At first this"}]
    thought.rollouts[1].branch_lengths, thought.rollouts[1].earlier_branches = [2, 2], [edited]
    thought.rollouts[1].loss_mask = [0, 1, 0, 1]
    groups = [
        replying("a", "no", "I loop the Loop"),
        replying("b", "100%", "100 percent", rewards=(0.5, 0.0)),
        replying("c", "say Ünï\n_code", "x", version=1),
    ]
    story.submit(run, [*groups, thought], actor="api:t")
    story.submit(run, [story.scored("f", (None, None))], actor="api:t")
    queue = make(run, filter=QueueFilter(**chosen))
    filling.fill(queue)
    assert "".join(sorted(keys(queue))) == found


SHOWN = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "an example"}]


def shown(key: str, *replies: str, tokens: dict[str, Any] | None = None, reward: float | None = 1.0) -> Any:
    """A group of one rollout whose prompt shows an assistant, before the policy says these things."""
    group = story.scored(key, (reward,))
    messages = list(SHOWN)
    for reply in replies:
        messages += [{"role": "user", "content": "?"}, {"role": "assistant", "content": reply}]
    group.rollouts = [story.rollout(reward, messages=messages, **(tokens or {}))]
    return group


def test_what_an_example_in_a_prompt_says_the_policy_did_not_say() -> None:
    run = story.launch()
    two = {"loss_mask": [0, 1, 0, 1]}
    branched = shown("d", "no", "no more", tokens=two | {"branch_lengths": [2, 2]})
    branched.rollouts[0].earlier_branches = [[*SHOWN, {"role": "assistant", "content": "at first an example"}]]
    unasked = shown("e", tokens={"token_ids": [], "loss_mask": [], "inference_logprobs": []}, reward=None)
    unasked.rollouts[0].spans = [Span(SpanKind.TOOLS, 0.0, 0.5)]
    groups = [shown("a", "no"), shown("b", "an example"), shown("c", "an example", "no", tokens=two), branched, unasked]
    story.submit(run, groups, actor="api:t")
    queue = make(run, filter=QueueFilter(run=run.key, text="an example"))
    filling.fill(queue)
    assert keys(queue) == ["b", "c", "d"]


def test_an_act_on_all_who_said_a_text_leaves_those_who_were_only_shown_it() -> None:
    run = story.launch()
    story.submit(run, [shown("a", "no"), shown("b", "an example")], actor="api:t")
    queue = make(run, filter=QueueFilter(run=run.key, text="an example"))
    assert filters.groups_of_run(queue) == (run, [run.groups.get(key="b").pk])


def test_groups_are_named_by_their_keys_within_a_run() -> None:
    run = story.launch()
    story.submit(run, [replying(key, "no", "yes") for key in "abc"], actor="api:t")
    story.submit(story.launch(), [replying("a", "no", "yes")], actor="api:t")
    queue = make(run, filter=QueueFilter(run=run.key, groups=["a", "c", "none"]))
    filling.fill(queue)
    assert keys(queue) == ["a", "c"]
    for chosen in (QueueFilter(groups=["a"]), QueueFilter(run=run.key, groups=["a"] * 201)):
        with pytest.raises(Invalid) as refused:
            make(run, name="other", filter=chosen)
        assert list(refused.value.fields) == ["filter.groups"]


def test_of_a_queue_of_rollouts_those_who_say_it_are_in_it() -> None:
    run = story.launch()
    story.submit(run, [replying("a", "no", "yes")], actor="api:t")
    queue = make(run, unit="rollout", filter=QueueFilter(text="YES", min_gap=1.0))
    assert filling.fill(queue) == 1
    assert QueueItem.objects.get().rollout.index == 1  # type: ignore[union-attr]


def test_where_next_to_nothing_fits_one_call_looks_through_so_many_pages_and_the_next_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(filling, "FILL", 2)
    monkeypatch.setattr(filling, "MOST_PAGES", 2)
    run = story.launch()
    story.submit(run, [replying(f"g{at}", "no", "yes" if at == 8 else "no") for at in range(9)], actor="api:t")
    age(run)
    queue = make(run, filter=QueueFilter(text="yes"))
    assert [filling.fill(queue) for _ in range(4)] == [0, 0, 1, 0]


def test_a_group_comes_into_a_queue_in_whatever_order_groups_reach_the_state_that_it_asks_for() -> None:
    run = story.launch()
    story.submit(run, [replying("late", "no", "yes"), replying("soon", "no", "yes")], actor="api:t")
    queue = make(run)
    act = acts.perform(run, Verb.REJECT, [run.groups.get(key="late").pk], user=somebody("cy"), actor="user:cy")
    age(run, key="late")
    assert filling.fill(queue) == 1
    acts.undo(act, user=somebody("cy"), actor="user:cy")
    assert filling.fill(queue) == 1
    assert keys(queue) == ["soon", "late"]


def test_a_group_that_shows_up_behind_the_end_of_a_full_page_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "FILL", 2)
    run = story.launch()
    story.submit(run, [replying(key, "no", "yes") for key in "ab"], actor="api:t")
    queue = make(run)
    assert filling.fill(queue) == 2
    story.submit(run, [replying("late", "no", "yes")], actor="api:t")
    age(run, key="late", seconds=filling._OVERLAP.seconds / 2)
    assert filling.fill(queue) == 1


def age(run: Run, *, seconds: float = 600, **chosen: Any) -> None:
    """Let groups have been settled, and come into their states, some time ago."""
    moment = timezone.now() - timedelta(seconds=seconds)
    with store.beyond_rights():
        run.groups.filter(**chosen).update(settled_at=moment, state_at=moment)


def test_one_act_is_on_those_whose_rollouts_fit_too() -> None:
    run = story.launch()
    story.submit(run, [replying("a", "no", "yes"), replying("b", "no", "no")], actor="api:t")
    _, ids = filters.groups_of_run(make(run, filter=QueueFilter(run=run.key, text="yes")))
    assert list(run.groups.filter(pk__in=ids).values_list("key", flat=True)) == ["a"]


def test_the_best_is_compared_with_the_worst_and_among_equals_those_who_are_drawn() -> None:
    run = story.launch()
    rewards: list[tuple[float | None, ...]] = [(0.2, 1.0, 0.5), (0.5, None, 0.1), (1.0, None), (None, None)]
    story.submit(run, [story.scored(f"g{at}", each) for at, each in enumerate(rewards)], actor="api:t")
    story.submit(run, [story.scored(f"equal{at}", (1.0, 1.0, 1.0, 1.0)) for at in range(40)], actor="api:t")
    queue, again = make(run, unit="pair"), make(run, name="again", unit="pair")
    filling.fill(queue)
    filling.fill(again)
    assert pairs(queue) == pairs(again)
    assert pairs(queue)[:2] == [(0, 1), (0, 2)]
    drawn = pairs(queue)[2:]
    assert len(drawn) == 40
    assert len(set(drawn)) > 3
    assert all(one < other for one, other in drawn)


def test_in_a_match_two_of_the_same_seat_are_compared() -> None:
    run = story.launch()
    group = story.scored("m", (1.0, 0.0, 0.6, 0.5))
    for at, rollout in enumerate(group.rollouts):
        rollout.seat = "ab"[at % 2]
    story.submit(run, [group], actor="api:t")
    queue = make(run, unit="pair")
    filling.fill(queue)
    assert pairs(queue) == [(1, 3)]  # of b, whose rewards differ by .5; those of a by .4


def test_a_preference_is_of_the_pair_whichever_side_it_stood_on_and_can_be_taken_back() -> None:
    run = story.launch()
    story.submit(run, [story.scored("a"), story.scored("b")], actor="api:t")
    queue = make(run, unit="pair")
    with pytest.raises(Invalid) as refused:
        say(queue, "cy", "reject")
    assert list(refused.value.fields) == ["verdict"]
    with pytest.raises(Invalid, match="preference"):
        say(queue, "cy")
    said = say(queue, "cy", preference="other")
    assert said.rollout is not None
    assert said.other is not None
    assert (said.rollout.index, said.other.index, said.preference) == (0, 1, "other")
    assert say(queue, "cy", "skip").preference == ""
    turns.undo(queue, somebody("cy"), actor="user:cy")
    turns.undo(queue, somebody("cy"), actor="user:cy")
    counting = Label.objects.filter(superseded_by__isnull=True)
    assert set(counting.values_list("verdict", "rollout__index", "other__index")) == {("withdrawn", 0, 1)}
    assert say(queue, "cy", preference="tie").supersedes is not None


def test_who_stands_left_is_drawn_for_each_person_and_item() -> None:
    run = story.launch()
    story.submit(run, [story.scored(f"g{at}") for at in range(40)], actor="api:t")
    queue = make(run, unit="pair")
    filling.fill(queue)
    items, people = list(queue.items.all()), [somebody("cy"), somebody("di")]
    drawn = [[label_queues.standing_left(item, person) for item in items] for person in people]
    assert drawn == [[label_queues.standing_left(item, person) for item in items] for person in people]
    assert drawn[0] != drawn[1]
    assert all(8 <= sum(side == "first" for side in sides) <= 32 for sides in drawn)


@pytest.mark.parametrize("unit", ["group", "rollout", "pair"])
def test_a_queue_of_disagreements_fills_itself_as_they_appear(unit: str) -> None:
    run = story.launch()
    story.submit(run, [story.scored("a"), story.scored("b")], actor="api:t")
    source = make(run, unit=unit, words_per_item=2, on_reject="" if unit == "pair" else "reject")
    disputed = make(run, name="adjudicate", source=source.key)
    yes, no = ({"preference": "first"}, {"preference": "tie"}) if unit == "pair" else ({}, {"verdict": "reject"})
    say(source, "cy", **yes)
    say(source, "di", **yes)
    assert filling.fill(disputed) == 0
    say(source, "cy", **yes)
    assert filling.fill(disputed) == 0
    say(source, "di", **no)
    assert filling.fill(disputed) == 1
    assert filling.fill(disputed) == 0
    [item] = disputed.items.all()
    [theirs] = source.items.filter(words=2).exclude(pk=source.items.earliest("id").pk)
    assert (item.group_id, item.rollout_id, item.other_id) == (theirs.group_id, theirs.rollout_id, theirs.other_id)
    turns.undo(source, somebody("di"), actor="user:di")
    assert filling.fill(disputed) == 0
    assert disputed.items.count() == 1  # what is in it stays in it


@pytest.mark.parametrize(
    ("source", "options", "named"),
    [
        ({"is_blind": True}, {}, "source"),
        ({"words_per_item": 1}, {}, "source"),
        ({}, {"source": "nobodys"}, "source"),
        ({}, {"source": "\0"}, "source"),
        ({}, {"words_per_item": 2}, "words_per_item"),
        ({}, {"is_blind": True}, "is_blind"),
        ({}, {"filter": QueueFilter(min_reward=1.0)}, "filter"),
    ],
)
def test_a_queue_of_disagreements_that_makes_no_sense_is_not_made(
    source: dict[str, Any], options: dict[str, Any], named: str
) -> None:
    run = story.launch()
    other = make(run, **({"words_per_item": 2} | source))
    with pytest.raises(Invalid) as refused:
        make(run, name="adjudicate", **({"source": other.key} | options))
    assert list(refused.value.fields) == [named]


def test_a_blind_queue_is_adjudicated_once_it_is_closed() -> None:
    run = story.launch()
    story.submit(run, [story.scored("a")], actor="api:t")
    source = make(run, is_blind=True, words_per_item=2)
    say(source, "cy")
    say(source, "di", "reject")
    with pytest.raises(Invalid, match="is blind and open"):
        make(run, name="adjudicate", source=source.key)
    queues.close(source)
    assert filling.fill(make(run, name="adjudicate", source=source.key)) == 1


def test_only_those_who_are_assigned_are_given_items() -> None:
    run = story.launch()
    story.submit(run, [story.scored("a")], actor="api:t")
    cy, di = (make_user(name, project=run.project) for name in ("cy", "di"))
    queue = make(run, people=["cy"])
    with pytest.raises(Forbidden, match="given to others"):
        turns.take(queue, di)
    turn = turns.take(queue, cy)
    assert turn is not None
    queues.assign(queue, ["di"])
    with pytest.raises(Forbidden):
        turns.take(queue, cy)
    assert turns.answer(turn, user=cy, actor="user:cy", verdict="accept").verdict == "accept"
    queues.assign(queue, [])
    assert turns.take(queue, di) is None


@pytest.mark.parametrize("name", ["nobody", "stranger", "viewer", "gone", "a\0b"])
def test_people_who_are_no_curators_of_the_project_are_not_assigned_whoever_they_are(name: str) -> None:
    run = story.launch()
    make_user("stranger", project=make_project("elsewhere"))
    make_user("viewer", role="viewer", project=run.project)  # type: ignore[arg-type]
    make_user("gone", project=run.project)
    User.objects.filter(username="gone").update(is_active=False)
    with pytest.raises(Invalid) as refused:
        make(run, people=[name])
    assert refused.value.fields == {"people": f"must be curators of the project: {name} is none"}


@concurrent
def test_several_who_fill_at_once_put_each_pair_and_each_disagreement_in_once() -> None:
    run = story.launch()
    story.submit(run, [story.scored(f"g{at}", (1.0, 1.0, 1.0)) for at in range(30)], actor="api:t")
    source = make(run, unit="pair", words_per_item=2)
    outcomes = story.together(*[lambda: filling.fill(source)] * 4)
    assert sum(outcomes) == 30
    disputed = make(run, name="adjudicate", source=source.key)
    for _ in range(10):
        say(source, "cy", preference="first")
        say(source, "di", preference="other")
    outcomes = story.together(*[lambda: filling.fill(disputed)] * 4)
    assert sorted(outcomes) == [0, 0, 0, 10]


@concurrent
def test_adjudicators_at_work_while_others_disagree_never_meet_and_get_all_of_it() -> None:
    run = story.launch()
    story.submit(run, [story.scored(f"g{at}") for at in range(10)], actor="api:t")
    source = make(run, words_per_item=2)
    disputed = make(run, name="adjudicate", source=source.key)

    def speak(name: str, verdict: str) -> int:
        said, person = 0, somebody(name)
        for _ in range(100):
            turn = turns.take(source, person)  # none while the other one is at the last item that they may have
            if turn is not None:
                turns.answer(turn, user=person, actor=f"user:{name}", verdict=verdict)
                said += 1
        return said

    def decide(name: str) -> list[int]:
        person, done = somebody(name), []
        for _ in range(60):
            turn = turns.take(disputed, person)
            if turn is not None:
                assert not QueueTurn.objects.filter(item=turn.item, label__isnull=True).exclude(person=person).exists()
                turns.answer(turn, user=person, actor=f"user:{name}", verdict="accept")
                done.append(turn.item_id)
        return done

    outcomes = story.together(
        lambda: speak("cy", "accept"), lambda: speak("di", "reject"), lambda: decide("eve"), lambda: decide("fay")
    )
    assert outcomes[:2] == [10, 10], outcomes
    done = [*outcomes[2], *outcomes[3], *decide("eve")]
    assert len(done) == len(set(done)) == 10
