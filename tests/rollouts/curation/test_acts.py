"""What people do with groups: what is rejected in time never enters a batch, and every act can be undone once."""

import threading
from typing import Any
from unittest.mock import DEFAULT, Mock, patch

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from rollouts.errors import Conflict, Invalid
from rollouts.models import Act, ActItem, Event, Run, ScoredGroup, Verb
from rollouts.selectors import curation
from rollouts.services.batches import forming
from rollouts.services.curation import acts, exchange
from rollouts.services.runs import life
from rollouts.states import GroupState
from tests.factories import somebody
from tests.rollouts import story

concurrent = pytest.mark.django_db(transaction=True)
pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    return story.launch()


def submit(run: Run, *keys: str) -> None:
    story.submit(run, [story.scored(key) for key in keys], actor="api:t")


def act(run: Run, verb: Verb, *keys: str, note: str = "") -> Act:
    ids = ScoredGroup.objects.filter(run=run, key__in=keys).values_list("pk", flat=True)
    return acts.perform(run, verb, ids, user=somebody("cy"), actor="user:cy", note=note)


def undo(done: Act) -> Act:
    return acts.undo(done, user=somebody("cy"), actor="user:cy")


def state(key: str) -> tuple[str, str]:
    row = ScoredGroup.objects.get(key=key)
    return row.state, row.withheld


def members(run: Run, epoch: int, step: int) -> set[str]:
    delivery = forming.fetch(run, epoch=epoch, step=step)
    assert delivery is not None
    return set(delivery.batch.items.values_list("group__key", flat=True))


def exported(run: Run, **options: Any) -> int:
    return sum(1 for _ in exchange.export_groups(run, **options))


def test_what_is_rejected_before_its_batch_is_never_trained(run: Run) -> None:
    submit(run, "a", "b", "c")
    act(run, Verb.REJECT, "a", note="it cheats")
    assert state("a") == ("rejected", "rejected")
    assert str(ScoredGroup.objects.get(key="a").state_reason) == "rejected by user:cy: it cheats"
    assert members(run, story.register(run).epoch, 0) == {"b", "c"}
    assert exported(run) == 2
    assert exported(run, states=["rejected"]) == 1


def test_what_is_rejected_after_its_batch_keeps_its_step_and_is_not_exported(run: Run) -> None:
    submit(run, "a", "b")
    assert members(run, story.register(run).epoch, 0) == {"a", "b"}
    act(run, Verb.REJECT, "a")
    assert state("a") == ("batched", "rejected")
    noted = Event.objects.filter(object_kind="scoredgroup").latest("id")
    assert (noted.kind, noted.reason_code, noted.actor) == ("noted", "rejected_late", "user:cy")
    assert exported(run) == 1


def test_what_is_excluded_is_trained_and_not_exported(run: Run) -> None:
    submit(run, "a", "b")
    act(run, Verb.EXCLUDE, "a")
    assert state("a") == ("ready", "excluded")
    assert exported(run) == 1
    assert members(run, story.register(run).epoch, 0) == {"a", "b"}


def test_excluding_what_is_rejected_brings_it_into_no_batch(run: Run) -> None:
    submit(run, "a")
    act(run, Verb.REJECT, "a")
    assert not act(run, Verb.EXCLUDE, "a").items.exists()
    assert state("a") == ("rejected", "rejected")


def test_what_is_restored_waits_for_a_batch_again(run: Run) -> None:
    submit(run, "a", "b")
    act(run, Verb.REJECT, "a", "b")
    act(run, Verb.RESTORE, "a", "b")
    assert state("a") == ("ready", "")
    assert members(run, story.register(run).epoch, 0) == {"a", "b"}


def test_what_is_restored_where_no_batch_comes_any_more_is_surplus(run: Run) -> None:
    submit(run, "a")
    act(run, Verb.REJECT, "a")
    life.request_stop(run, actor="user:ada")
    act(run, Verb.RESTORE, "a")
    assert state("a") == ("surplus", "")
    assert exported(run) == 1


def test_an_act_is_undone_as_one_and_once(run: Run) -> None:
    submit(run, "a", "b", "c")
    act(run, Verb.EXCLUDE, "b")
    done = act(run, Verb.REJECT, "a", "b")
    undo(done)
    assert [state(key) for key in "abc"] == [("ready", ""), ("ready", "excluded"), ("ready", "")]
    with pytest.raises(Conflict, match="It is undone already"):
        undo(done)


def test_undoing_that_was_broken_off_is_gone_on_with(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(run, "a", "b", "c")
    monkeypatch.setattr(acts, "_AT_ONCE", 1)
    done = act(run, Verb.REJECT, "a", "b", "c")
    broken = Mock(wraps=acts._put_back, side_effect=[DEFAULT, OSError("killed")])
    with patch.object(acts, "_put_back", broken), pytest.raises(OSError, match="killed"):
        undo(done)
    assert [state(key)[0] for key in "abc"] == ["ready", "rejected", "rejected"]
    assert curation.acts(run).get(pk=done.pk).is_half_undone
    undoing = undo(done)
    assert [state(key)[0] for key in "abc"] == ["ready", "ready", "ready"]
    assert (undoing.items.count(), Act.objects.filter(undoes=done).count()) == (3, 1)
    assert not curation.acts(run).get(pk=done.pk).is_half_undone
    with pytest.raises(Conflict, match="It is undone already"):
        undo(done)


def test_an_act_that_is_undone_while_it_goes_on_ends_there(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(run, "a", "b", "c")
    monkeypatch.setattr(acts, "_AT_ONCE", 1)
    withhold = acts._withhold

    def withheld_and_undone(doing: Act, meant: Any) -> None:
        withhold(doing, meant)
        if doing.verb == Verb.REJECT:
            undo(doing)

    monkeypatch.setattr(acts, "_withhold", withheld_and_undone)
    act(run, Verb.REJECT, "a", "b", "c")
    assert [state(key) for key in "abc"] == [("ready", "")] * 3


def test_undoing_leaves_alone_what_somebody_acted_on_since(run: Run) -> None:
    submit(run, "a", "b")
    done = act(run, Verb.REJECT, "a", "b")
    act(run, Verb.RESTORE, "b")
    act(run, Verb.EXCLUDE, "b")
    assert list(undo(done).items.values_list("group__key", flat=True)) == ["a"]
    assert [state(key) for key in "ab"] == [("ready", ""), ("ready", "excluded")]


def test_an_undone_act_can_be_done_again(run: Run) -> None:
    submit(run, "a")
    undo(undo(act(run, Verb.REJECT, "a")))
    assert state("a") == ("rejected", "rejected")


def test_items_are_what_an_act_changed_and_how_it_was_before(run: Run) -> None:
    submit(run, "a", "b")
    act(run, Verb.EXCLUDE, "a")
    assert list(act(run, Verb.EXCLUDE, "a", "b").items.values_list("group__key", "withheld_before")) == [("b", "")]


def test_groups_of_other_runs_and_those_that_are_played_are_left_alone(run: Run) -> None:
    other = story.launch()
    submit(other, "a")
    [claim, *_] = story.claim(run)
    playing = ScoredGroup.objects.filter(run=run, state=GroupState.PLAYING)
    ids = [*playing.values_list("pk", flat=True), ScoredGroup.objects.get(run=other).pk]
    done = acts.perform(run, Verb.REJECT, ids, user=somebody("cy"), actor="user:cy")
    assert not done.items.exists()
    assert story.settle(claim) == GroupState.READY


def test_a_note_that_cannot_be_stored_is_refused_and_nothing_is_done(run: Run) -> None:
    submit(run, "a")
    with pytest.raises(Invalid, match="The note holds a NUL"):
        act(run, Verb.REJECT, "a", note="\0")
    with pytest.raises(Invalid, match="The note is too long"):
        act(run, Verb.REJECT, "a", note="n" * 2_001)
    assert not Act.objects.exists()
    assert state("a") == ("ready", "")


@concurrent
@pytest.mark.parametrize("again", range(4))
def test_a_batch_and_an_act_that_race_for_groups_agree_who_had_them(again: int) -> None:
    run, epoch = story.train()
    submit(run, *"abcd")
    story.together(lambda: forming.fetch(run, epoch=epoch, step=0), lambda: act(run, Verb.REJECT, *"abcd"))
    forming.fetch(run, epoch=epoch, step=0)
    groups = ScoredGroup.objects.filter(run=run)
    assert set(groups.values_list("state", flat=True)) in ({"rejected"}, {"rejected", "batched"})
    assert set(groups.values_list("withheld", flat=True)) == {"rejected"}
    assert ActItem.objects.count() == 4


def overlapping(run: Run) -> tuple[Act, Act]:
    """A reject of a and then of b, and an exclude of both that was begun later, and that came before it to b."""
    lock, is_between = acts.lock, threading.Barrier(2)

    def locked_in_turns(doing: Act) -> None:
        if doing.verb == Verb.REJECT and doing.items.exists():
            is_between.wait(10)  # the other one begins
            is_between.wait(10)  # and is through
        lock(doing)

    def exclude() -> Act:
        is_between.wait(10)
        try:
            return act(run, Verb.EXCLUDE, "a", "b")
        finally:
            is_between.wait(10)

    with patch.object(acts, "_AT_ONCE", 1), patch.object(acts, "lock", locked_in_turns):
        rejected, excluded = story.together(lambda: act(run, Verb.REJECT, "a", "b"), exclude)
    assert [state(key) for key in "ab"] == [("rejected", "rejected")] * 2
    assert rejected.pk < excluded.pk
    assert list(excluded.items.values_list("group__key", flat=True)) == ["b"]
    return rejected, excluded


@concurrent
def test_of_two_acts_at_once_the_one_that_came_later_to_a_group_is_undone_there() -> None:
    run = story.launch()
    submit(run, "a", "b")
    rejected, _ = overlapping(run)
    undo(rejected)
    assert [state(key) for key in "ab"] == [("ready", ""), ("ready", "excluded")]


@concurrent
def test_of_two_acts_at_once_the_one_that_came_first_to_a_group_is_not_undone_there() -> None:
    run = story.launch()
    submit(run, "a", "b")
    rejected, excluded = overlapping(run)
    undo(excluded)
    assert [state(key) for key in "ab"] == [("rejected", "rejected")] * 2
    assert not curation.acts(run).get(pk=excluded.pk).is_half_undone
    assert curation.acts_on(ScoredGroup.objects.get(key="b")) == [rejected, excluded]


def test_which_act_came_last_to_groups_is_asked_once_for_all_of_them(run: Run) -> None:
    def queries(*keys: str) -> int:
        submit(run, *keys)
        done = act(run, Verb.EXCLUDE, *keys)
        with CaptureQueriesContext(connection) as asked:
            undo(done)
        return sum('SELECT DISTINCT ON ("rollouts_actitem"' in each["sql"] for each in asked)

    assert (queries("a"), queries("b", "c", "d")) == (1, 1)


@concurrent
def test_two_people_undo_an_act_once() -> None:
    run = story.launch()
    submit(run, "a")
    done = act(run, Verb.REJECT, "a")
    outcomes = story.together(lambda: undo(done), lambda: undo(done))
    assert sorted(type(each).__name__ for each in outcomes) == ["Act", "Conflict"]
    assert state("a") == ("ready", "")
