"""Formation and delivery of batches: once, the same bytes, and only for the trainer that is in charge."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from environments.types import PlayedGroup, StopReason
from rollouts.errors import Conflict, NotFound, RunOver, StaleEpoch, StateConflict
from rollouts.models import Batch, BatchItem, Event, GroupTokens, MetricPoint, Rollout, Run, ScoredGroup, Verb
from rollouts.selectors.next_batch import Outlook, look
from rollouts.services.batches import forming
from rollouts.services.curation import acts
from rollouts.services.groups import settling
from rollouts.services.runs import life, trainer_writes
from rollouts.states import BatchState, GroupState
from tests import store
from tests.factories import somebody
from tests.rollouts import story
from trainers.wire import TrainingBatch

pytestmark = pytest.mark.django_db
concurrent = pytest.mark.django_db(transaction=True)


def decode(delivery: forming.Outgoing) -> TrainingBatch:
    return msgspec.msgpack.decode(delivery.body, type=TrainingBatch)


def fetch(run: Run, epoch: int, step: int) -> forming.Outgoing:
    delivery = forming.fetch(run, epoch=epoch, step=step)
    assert delivery is not None
    return delivery


@concurrent
def test_a_batch_that_drops_stale_groups_locks_them_in_one_order_with_its_own() -> None:
    run, _ = story.train()
    story.submit(run, [story.scored(key) for key in "abc"], actor="api:t")
    first, *_, last = ScoredGroup.objects.filter(run=run).order_by("pk").values_list("pk", flat=True)
    outlook = replace(look(run, 0), stale=[last])
    groups = ScoredGroup.objects.select_for_update(no_key=True, nowait=True)

    def form() -> Any:
        return forming.form(Run.objects.select_for_update(no_key=True).get(pk=run.pk), 0, outlook)

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():  # as somebody's act on both
            groups.get(pk=first)
            formed = story.behind(pool, form)
            groups.get(pk=last)
        assert formed.result(10) is not None
    assert ScoredGroup.objects.get(pk=last).state == GroupState.STALE


def test_a_batch_is_formed_by_the_clock_of_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other moments are compared with it, and the clock of a web host may be ahead."""
    run, epoch = story.train()
    story.generate(run)
    monkeypatch.setattr(timezone, "now", lambda: datetime(2100, 1, 1, tzinfo=UTC))
    fetch(run, epoch, 0)
    assert Batch.objects.get(run=run).formed_at.year < 2100


def test_a_batch_is_the_oldest_ready_groups_in_order() -> None:
    run, epoch = story.train()
    story.generate(run)
    oldest = list(ScoredGroup.objects.order_by("id").values_list("key", flat=True)[:2])
    delivery = fetch(run, epoch, 0)
    batch = decode(delivery)
    assert [(each.group, each.index) for each in batch.rollouts] == [(key, index) for key in oldest for index in (0, 1)]
    assert (batch.run, batch.step, batch.temperature) == (run.key, 0, 1.0)
    assert [round(each.advantage, 3) for each in batch.rollouts] == [-1.0, 1.0, -1.0, 1.0]
    assert delivery.sha256 == hashlib.sha256(delivery.body).hexdigest()
    stored = Batch.objects.get()
    assert (stored.state, stored.size_bytes, stored.token_count) == (BatchState.DELIVERED, len(delivery.body), 8)


def test_a_batch_is_formed_only_when_it_is_full() -> None:
    run, epoch = story.train()
    [first, second] = story.claim(run, 2)
    story.settle(first)
    assert forming.fetch(run, epoch=epoch, step=0) is None
    assert not Batch.objects.exists()
    story.settle(second)
    assert len(decode(fetch(run, epoch, 0)).rollouts) == 4


def test_a_batch_has_the_same_bytes_on_every_fetch_also_for_a_later_epoch_and_after_the_step() -> None:
    run, epoch = story.train()
    story.generate(run)
    first = fetch(run, epoch, 0)
    assert fetch(run, epoch, 0) == first
    later = story.register(run).epoch
    assert fetch(run, later, 0) == first
    story.ack(run, later, 0, first.sha256)
    assert fetch(run, later, 0) == first
    assert Batch.objects.get().deliveries == 4
    assert Event.objects.filter(object_kind="batch").count() == 3, "formed, delivered and trained, each once"


@concurrent
def test_two_fetchers_at_the_same_time_get_the_same_batch() -> None:
    run, epoch = story.train()
    story.generate(run)
    deliveries = story.together(*[lambda: forming.fetch(run, epoch=epoch, step=0)] * 4)
    assert len(set(deliveries)) == 1
    assert deliveries[0] is not None
    assert Batch.objects.count() == 1
    assert BatchItem.objects.count() == 2


@concurrent
def test_a_step_is_formed_once_while_groups_settle() -> None:
    run, epoch = story.train(algorithm__max_async_level=2)
    claims = story.claim(run)
    settles = [lambda claim=claim: story.settle(claim) for claim in claims]
    story.together(*settles, *[lambda: forming.fetch(run, epoch=epoch, step=0)] * 3)
    first, second = fetch(run, epoch, 0), fetch(run, epoch, 1)
    members = [each.group for each in [*decode(first).rollouts, *decode(second).rollouts]]
    assert len(set(members)) == 4


def test_a_group_rejected_while_its_batch_is_formed_is_in_none(monkeypatch: pytest.MonkeyPatch) -> None:
    run, epoch = story.train(algorithm__max_async_level=2)
    story.generate(run)
    rejected = ScoredGroup.objects.order_by("id").first()
    assert rejected is not None

    def look_before_a_person_does(*args: Any) -> Outlook:
        outlook = look(*args)
        acts.perform(run, Verb.REJECT, [rejected.pk], user=somebody(), actor="user:ada")
        return outlook

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(forming, "look", look_before_a_person_does)
        assert forming.fetch(run, epoch=epoch, step=0) is None
    assert not Batch.objects.exists()
    assert not ScoredGroup.objects.filter(state=GroupState.BATCHED).exists()
    assert rejected.key not in {each.group for each in decode(fetch(run, epoch, 0)).rollouts}


def test_a_group_is_in_at_most_one_step() -> None:
    run, epoch = story.train(max_steps=6, algorithm__max_async_level=2)
    members: list[str] = []
    for number in range(6):
        members += {each.group for each in decode(story.step(run, epoch, number)).rollouts}
    assert len(members) == len(set(members)) == 12


def test_the_database_refuses_a_group_in_two_batches() -> None:
    run, epoch = story.train()
    story.generate(run)
    fetch(run, epoch, 0)
    item = BatchItem.objects.select_related("group").first()
    assert item is not None
    second = Batch.objects.create(run=run, step=1, epoch=epoch, sha256="", size_bytes=0, token_count=0)
    with pytest.raises(IntegrityError, match="batch_item_group_trains_once"), transaction.atomic():
        BatchItem.objects.create(batch=second, group=item.group, position=0, advantages=[])
    BatchItem.objects.create(batch=second, group=item.group, position=0, replay=1, advantages=[])


def test_groups_that_lag_too_far_are_dropped_as_stale() -> None:
    run, epoch = story.train(algorithm__max_off_policy_steps=1, algorithm__max_async_level=1, max_steps=5)
    for number in range(3):
        story.step(run, epoch, number)
    late = story.submit(run, [story.scored(f"late-{version}", version=version) for version in (1, 2)], actor="api:x")
    story.generate(run)
    delivery = fetch(run, epoch, 3)
    stale = ScoredGroup.objects.get(key=late[0])
    assert (stale.state, stale.state_reason) == (GroupState.STALE, "lag over 1 steps at step 3")
    assert not stale.batch_items.exists()
    assert all(3 - each.min_policy_version <= 1 for each in decode(delivery).rollouts)


def test_stale_groups_are_dropped_even_when_they_are_too_few_for_a_batch() -> None:
    """They count as ready: kept, they would take the room of groups that can be trained on."""
    run, epoch = story.train(algorithm__max_off_policy_steps=0, algorithm__max_async_level=0)
    story.step(run, epoch, 0)
    story.submit(run, [story.scored("late", version=0)], actor="api:x")
    assert forming.fetch(run, epoch=epoch, step=1) is None
    assert ScoredGroup.objects.get(key="late").state == GroupState.STALE


def test_failed_rollouts_are_members_of_the_group_but_not_of_the_batch() -> None:
    run, epoch = story.train(sampling__group_size=4, batch__batch_size=8)
    first, second = story.claim(run, 2)
    story.settle(first, [1.0, None, 0.0, None])
    story.settle(second, [None, 1.0, None, None])
    batch = decode(fetch(run, epoch, 0))
    assert [(each.group, each.index) for each in batch.rollouts] == [
        (first.group, 0),
        (first.group, 2),
        (second.group, 1),
    ]
    assert [round(each.advantage, 3) for each in batch.rollouts] == [1.0, -1.0, 0.0]
    items = BatchItem.objects.order_by("position").values_list("advantages", flat=True)
    assert [[value is None for value in each] for each in items] == [
        [False, True, False, True],
        [True, False, True, True],
    ]
    assert MetricPoint.objects.get(key="batch/failed_rollouts").value == 5


def test_rollouts_that_were_cut_off_are_left_out_but_their_reward_counts() -> None:
    run, epoch = story.train(algorithm__advantage="mean", algorithm__corrections__mask_overlong=True)
    for claim in story.claim(run, 2):
        cut = story.rollout(1.0, stop_reason=StopReason.LENGTH)
        settling.settle(token=claim.token, problem_key="p", rollouts=[cut, story.rollout(0.0, tokens=5)], worker="w")
    batch = decode(fetch(run, epoch, 0))
    assert [(each.index, each.advantage) for each in batch.rollouts] == [(1, -0.5), (1, -0.5)]
    assert Batch.objects.get().token_count == 2 * 3


def test_a_baseline_by_length_weighs_with_sampled_tokens() -> None:
    run, epoch = story.train(algorithm__loss__type="opo")
    for claim in story.claim(run, 2):
        played = [story.rollout(1.0, tokens=2 + 10), story.rollout(0.0, tokens=2 + 30)]
        settling.settle(token=claim.token, problem_key="p", rollouts=played, worker="w")
    assert [each.advantage for each in decode(fetch(run, epoch, 0)).rollouts] == [0.75, -0.25] * 2


def test_rollouts_without_a_sampled_token_are_not_sent() -> None:
    run, epoch = story.train()
    for claim in story.claim(run, 2):
        mute = story.rollout(1.0, loss_mask=[0] * 4)
        settling.settle(token=claim.token, problem_key="p", rollouts=[mute, story.rollout(0.0)], worker="w")
    assert [each.index for each in decode(fetch(run, epoch, 0)).rollouts] == [1, 1]


def test_groups_from_a_version_newer_than_the_step_do_not_lag_backwards() -> None:
    run, epoch = story.train()
    story.submit(run, [story.scored("a", version=1), story.scored("b", version=1)], actor="api:x")
    fetch(run, epoch, 0)
    assert MetricPoint.objects.get(key="lag/max").value == 0
    assert MetricPoint.objects.get(key="lag/mean").value == 0


def test_formation_records_what_the_batch_is_made_of() -> None:
    run, epoch = story.train()
    first, second = story.claim(run, 2)
    story.settle(first, [1.0, 0.0])
    story.settle(second, [1.0, 1.0])
    fetch(run, epoch, 0)
    assert dict(MetricPoint.objects.filter(step=0).values_list("key", "value")) == {
        "reward/mean": 0.75,
        "reward/std": pytest.approx(0.4330127),
        "reward/reverse_text/mean": 0.75,
        "reward/zero_advantage_share": 0.5,
        "reward/generated_mean": 0.75,
        "problems/no_signal_share": 0.5,
        "problems/all_solved_share": 0.5,
        "problems/none_solved_share": 0.0,
        "problems/filtered_share": 0.0,
        "lag/max": 0.0,
        "lag/mean": 0.0,
        "batch/groups": 2.0,
        "batch/failed_rollouts": 0.0,
    }


def test_more_seats_than_metrics_may_name_refuse_no_batch_and_the_environments_are_told() -> None:
    run, epoch = story.train(batch__batch_size=512)

    def told(step: int, seats: int) -> set[str]:
        """The keys of a step whose groups have so many seats."""
        match = [story.rollout(float(at % 2), seat=f"player {at % seats}") for at in range(510)]
        matches = PlayedGroup(environment="chess", problem_key="p", rollouts=match)
        story.submit(run, [story.scored(), matches], actor="api:x")
        story.ack(run, epoch, step, fetch(run, epoch, step).sha256)
        return set(MetricPoint.objects.filter(run=run, step=step).values_list("key", flat=True))

    few, many = told(0, seats=400), told(1, seats=510)
    assert {"reward/mean", "reward/chess/mean", "reward/reverse_text/mean", "reward/chess/player 399/mean"} <= few
    assert {key for key in many if key not in few} == set()
    assert {key for key in few if key not in many} == {key for key in few if "player" in key}


def test_names_as_long_as_they_may_be_refuse_no_batch_and_stand_for_nothing_else() -> None:
    run, epoch = story.train()
    long = ["e" * 99 + end for end in "ab"]
    story.submit(run, [story.scored(environment=name) for name in long], actor="api:x")
    fetch(run, epoch, 0)
    keys = set(MetricPoint.objects.values_list("key", flat=True))
    assert "reward/mean" in keys
    assert not any(key.startswith("reward/eee") for key in keys), "cut, they would be one"


def test_every_write_of_an_older_trainer_is_refused_and_changes_nothing() -> None:
    run, old = story.train()
    story.generate(run)
    delivery = fetch(run, old, 0)
    new = story.register(run).epoch
    events = Event.objects.count()
    for write in (
        lambda: forming.fetch(run, epoch=old, step=0),
        lambda: forming.fetch(run, epoch=new + 1, step=0),
        lambda: story.ack(run, old, 0, delivery.sha256),
        lambda: story.announce(run, old, 1),
        lambda: trainer_writes.finish_training(run, epoch=old),
    ):
        with pytest.raises(StaleEpoch):
            write()
    assert Event.objects.count() == events
    assert story.fresh(run).next_step == 0


def test_an_acknowledgement_of_other_bytes_is_refused() -> None:
    run, epoch = story.train()
    story.generate(run)
    fetch(run, epoch, 0)
    for sha256 in ("0" * 64, None):
        with pytest.raises(Conflict, match="Fetch it again"):
            story.ack(run, epoch, 0, sha256)
    assert Batch.objects.get().state == BatchState.DELIVERED
    assert story.fresh(run).next_step == 0


def test_a_step_cannot_be_acknowledged_before_it_was_delivered() -> None:
    run, epoch = story.train()
    with pytest.raises(NotFound, match="fetch its batch"):
        story.ack(run, epoch, 0, "0" * 64)
    with pytest.raises(Conflict, match="0 is the next"):
        story.ack(run, epoch, 1, "0" * 64)


def test_acknowledging_twice_is_acknowledging_once() -> None:
    run, epoch = story.train()
    sha256 = story.step(run, epoch, 0).sha256
    events = Event.objects.count()
    assert story.ack(run, epoch, 0, sha256, **{"loss/mean": 0.5}) == 1
    assert Event.objects.count() == events
    assert MetricPoint.objects.get(key="loss/mean").value == 0.5


def test_no_step_is_formed_out_of_turn() -> None:
    run, epoch = story.train()
    story.generate(run)
    with pytest.raises(StateConflict, match="0 is the next"):
        forming.fetch(run, epoch=epoch, step=1)
    with pytest.raises(RunOver):
        forming.fetch(run, epoch=epoch, step=run.max_steps)
    life.request_stop(run, actor="user:ada")
    with pytest.raises(RunOver):
        forming.fetch(run, epoch=epoch, step=0)


def test_a_batch_whose_rows_were_changed_is_never_sent() -> None:
    run, epoch = story.train()
    story.generate(run)
    fetch(run, epoch, 0)
    with store.beyond_rights():
        Rollout.objects.filter(group__state=GroupState.BATCHED).update(reward=0.25)
    with pytest.raises(AssertionError, match="no longer encodes to its hash"):
        forming.fetch(run, epoch=epoch, step=0)


def test_asking_in_vain_locks_and_writes_nothing(django_assert_num_queries: Any) -> None:
    run, epoch = story.train()
    with django_assert_num_queries(5) as seen:
        assert forming.fetch(run, epoch=epoch, step=0) is None
    assert not [query for query in seen.captured_queries if "FOR " in query["sql"] or "UPDATE" in query["sql"]]


@pytest.mark.parametrize("size", [4, 16])
def test_a_batch_is_formed_and_sent_in_as_many_queries_whatever_its_size(
    size: int, django_assert_num_queries: Any
) -> None:
    run, epoch = story.train(batch__batch_size=size)
    story.generate(run)
    with django_assert_num_queries(18):
        fetch(run, epoch, 0)


def test_tokens_are_stored_as_they_are_sent() -> None:
    run, epoch = story.train()
    story.generate(run)
    first = decode(fetch(run, epoch, 0)).rollouts[0]
    tokens = GroupTokens.objects.order_by("pk").first()
    assert tokens is not None
    assert first.token_ids == bytes([65, 0, 0, 0, 66, 0, 0, 0, 67, 0, 0, 0, 68, 0, 0, 0])
    assert first.loss_mask == b"\0\0\1\1"
    assert first.inference_logprobs == b"\0" * 8 + b"\0\0\0\xbf" * 2
    assert bytes(tokens.lengths) == b"\4\0\0\0\4\0\0\0"
    assert bytes(tokens.token_ids) == 2 * first.token_ids
    assert bytes(tokens.loss_mask) == 2 * first.loss_mask
    assert bytes(tokens.inference_logprobs) == 2 * first.inference_logprobs
