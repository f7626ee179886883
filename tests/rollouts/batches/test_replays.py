"""Train stored batches again, in another run: the same groups, other advantages, on record, and nobody's loss."""

from typing import Any

import msgspec
import pytest

from rollouts.errors import Conflict, Invalid, RunOver
from rollouts.formats.atropos.extras import Extras
from rollouts.models import Batch, BatchItem, Event, GroupTokens, MetricPoint, Replay, Run, Scope, ScoredGroup
from rollouts.selectors import runs as run_selectors
from rollouts.services.batches import forming, replays
from rollouts.services.batches.verification import verify_batches
from rollouts.services.runs import life
from rollouts.states import BatchState, GroupState, RunState
from tests import store
from tests.factories import make_project, make_run
from tests.rollouts import story
from tests.rollouts.api import Api, make_token, problem, row_counts
from trainers.config import resolve
from trainers.wire import TrainingBatch

pytestmark = [pytest.mark.django_db, pytest.mark.slow]  # each trains a run first


@pytest.fixture
def source() -> Run:
    """A run that has trained three steps, one reward of which differs within its group."""
    run, epoch = story.train()
    for step in range(3):
        first, second = story.claim(run, 2)
        story.settle(first, [1.0, 0.0])
        story.settle(second, [0.25, 1.0])
        delivery = forming.fetch(run, epoch=epoch, step=step)
        assert delivery is not None
        story.ack(run, epoch, step, delivery.sha256)
        story.announce(run, epoch, step + 1)
        story.publish(run)
    return story.fresh(run)


def order(run: Run, source: Run, first_step: int, last_step: int) -> Replay:
    return replays.order(
        run, source=source, first_step=first_step, last_step=last_step, actor="user:ada", reason="again"
    )


def fetch(run: Run, epoch: int, step: int) -> TrainingBatch:
    delivery = forming.fetch(run, epoch=epoch, step=step)
    assert delivery is not None
    return msgspec.msgpack.decode(delivery.body, type=TrainingBatch)


def members(run: Run, step: int) -> list[str]:
    return list(run.batches.get(step=step).items.order_by("position").values_list("group__key", flat=True))


def numbers(run: Run) -> set[int]:
    return set(BatchItem.objects.filter(batch__run=run).values_list("replay", flat=True))


def test_a_replayed_batch_has_the_same_groups_in_the_same_order_with_advantages_of_the_target(source: Run) -> None:
    target, epoch = story.train(algorithm__advantage="mean")
    order(target, source, 1, 2)
    for step, original in ((0, 1), (1, 2)):
        batch = fetch(target, epoch, step)
        assert (batch.run, batch.step) == (target.key, step)
        assert members(target, step) == members(source, original)
        assert [each.group for each in batch.rollouts[::2]] == members(source, original)
        assert [each.advantage for each in batch.rollouts] == [0.5, -0.5, -0.375, 0.375]
        replayed = target.batches.get(step=step)
        assert replayed.replay_of == source.batches.get(step=original)
        assert [verdict.fault for verdict in verify_batches(target)] == [""] * (step + 1)
        story.ack(target, epoch, step, replayed.sha256)
    assert Replay.objects.get().taken == 2
    assert numbers(target) == {1}
    assert [round(each, 3) for each in source.batches.get(step=1).items.get(position=1).advantages] == [-1.0, 1.0]


def test_a_replay_heeds_the_advantages_that_were_set_to_zero_when_the_groups_came(source: Run) -> None:
    target, epoch = story.train(algorithm__advantage="mean")
    with store.beyond_rights():  # as groups of Atropos' environments come
        groups = source.batches.get(step=1).items.values("group")
        extras = Extras(json={"overrides": b'[{"set_advantage_to_zero": true}, {}]'}).pack()
        GroupTokens.objects.filter(group__in=groups).update(extras=extras)
    order(target, source, 1, 1)
    assert [each.advantage for each in fetch(target, epoch, 0).rollouts] == [0.0, -0.5, 0.0, 0.375]


def test_the_batch_says_in_its_first_event_what_it_repeats_and_nothing_of_a_lag(source: Run) -> None:
    target, epoch = story.train()
    order(target, source, 2, 2)
    fetch(target, epoch, 0)
    event = Event.objects.get(run=target, object_kind="batch", to_state=BatchState.FORMED)
    assert str(event.reason) == f"replays step 2 of run {source.key}"
    assert not MetricPoint.objects.filter(run=target, key__startswith="lag/").exists()
    assert MetricPoint.objects.get(run=target, key="reward/mean").value == 0.5625


def test_the_source_keeps_its_ledger_also_when_the_target_ends(source: Run) -> None:
    target, epoch = story.train()
    ledger = run_selectors.ledger(source)
    events = Event.objects.filter(run=source).count()
    order(target, source, 0, 1)
    fetch(target, epoch, 0)
    story.ack(target, epoch, 0, target.batches.get(step=0).sha256)
    fetch(target, epoch, 1)
    life.end(life.request_stop(target, actor="user:ada"), to=RunState.STOPPED)
    assert run_selectors.ledger(source) == ledger
    assert Event.objects.filter(run=source).count() == events
    assert set(ScoredGroup.objects.filter(run=source).values_list("state", flat=True)) == {GroupState.TRAINED}


def test_replays_come_before_batches_of_ones_own_and_in_the_order_they_were_ordered(source: Run) -> None:
    target, epoch = story.train(max_steps=5)
    story.generate(target)
    order(target, source, 2, 2)
    order(target, source, 0, 1)
    for step, original in enumerate((2, 0, 1)):
        fetch(target, epoch, step)
        assert members(target, step) == members(source, original)
    own = [each.group for each in fetch(target, epoch, 3).rollouts]
    assert set(own) == set(
        ScoredGroup.objects.filter(run=target, state=GroupState.BATCHED).values_list("key", flat=True)
    )


def test_a_replay_that_is_ordered_late_comes_after_the_batches_that_exist(source: Run) -> None:
    target, epoch = story.train(max_steps=5)
    story.generate(target)
    first = forming.fetch(target, epoch=epoch, step=0)
    order(target, source, 0, 0)
    assert forming.fetch(target, epoch=epoch, step=0) == first
    fetch(target, epoch, 1)
    assert members(target, 1) == members(source, 0)


def test_the_same_steps_can_be_replayed_as_often_as_wanted_and_are_counted(source: Run) -> None:
    first, epoch = story.train(max_steps=5)
    second, second_epoch = story.train(max_steps=5)
    order(first, source, 0, 0)
    order(first, source, 0, 0)
    order(second, source, 0, 0)
    fetch(first, epoch, 0)
    fetch(second, second_epoch, 0)
    fetch(first, epoch, 1)
    assert numbers(source) == {0}
    items = BatchItem.objects.filter(group__key=members(source, 0)[0]).order_by("replay")
    assert [(item.replay, item.batch.run, item.batch.step) for item in items] == [
        (0, source, 0),
        (1, first, 0),
        (2, second, 0),
        (3, first, 1),
    ]
    assert members(first, 0) == members(first, 1) == members(second, 0)


@pytest.mark.django_db(transaction=True)
def test_two_runs_that_replay_the_same_step_at_the_same_time_count_apart(source: Run) -> None:
    targets = [story.train() for _ in range(4)]
    for target, _ in targets:
        order(target, source, 0, 0)
    results = story.together(*[lambda each=each: fetch(each[0], each[1], 0) for each in targets])
    assert all(isinstance(result, TrainingBatch) for result in results), results
    replayed = BatchItem.objects.filter(group__key=members(source, 0)[0]).order_by("replay")
    assert [item.replay for item in replayed] == [0, 1, 2, 3, 4]


def test_a_replay_is_fetched_again_with_the_same_bytes_also_by_a_later_epoch(source: Run) -> None:
    target, epoch = story.train()
    order(target, source, 0, 0)
    first = forming.fetch(target, epoch=epoch, step=0)
    later = story.register(target).epoch
    assert forming.fetch(target, epoch=later, step=0) == first
    assert first is not None
    assert story.ack(target, later, 0, first.sha256) == 1


def test_old_groups_are_not_stale_in_a_replay(source: Run) -> None:
    target, epoch = story.train(max_steps=6, algorithm__max_off_policy_steps=0, algorithm__max_async_level=0)
    for step in range(3):
        story.step(target, epoch, step)
    order(target, source, 0, 0)
    assert len(fetch(target, epoch, 3).rollouts) == 4


def test_a_replay_needs_no_ready_group_and_goes_into_an_external_run(source: Run) -> None:
    resolved = resolve("external-trainer")
    target = life.start(life.create(project=make_project(), user=None, resolved=resolved, actor="user:ada"))
    epoch = story.register(target).epoch
    assert forming.fetch(target, epoch=epoch, step=0) is None
    order(target, source, 0, 0)
    assert len(fetch(target, epoch, 0).rollouts) == 4


@pytest.mark.parametrize(("first", "last"), [(-1, 0), (2, 1), (2, 3), (3, 3), (0, 10**12)])
def test_only_steps_that_were_trained_can_be_replayed(source: Run, first: int, last: int) -> None:
    target, _ = story.train()
    with pytest.raises(Invalid):
        order(target, source, first, last)
    with store.beyond_rights():
        Batch.objects.filter(run=source, step=1).update(state=BatchState.DELIVERED, trained_at=None)
    with pytest.raises(Invalid, match="steps that were trained"):
        order(target, source, 0, 2)
    assert not Replay.objects.exists()


def test_runs_that_cannot_replay_are_refused(source: Run) -> None:
    with pytest.raises(Conflict, match="name another run"):
        order(source, source, 0, 0)
    with pytest.raises(Conflict, match="name another run"):
        order(story.launch_supervised(), source, 0, 0)
    with pytest.raises(
        Conflict, match=r"at a temperature of 1\.0, .* trains at 0\.7: launch one with sampling\.temperature=1\.0"
    ):
        order(story.launch(sampling__temperature=0.7), source, 0, 0)
    with store.beyond_rights():  # as groups of Atropos' environments may come into an external run
        groups = source.batches.get(step=1).items.values("group")
        GroupTokens.objects.filter(group__in=groups).update(extras=Extras(inference_fill=None).pack())
    with pytest.raises(Conflict, match=r"Step 1 .* without the logprobs .* replay into an external run"):
        order(story.launch(), source, 0, 2)
    assert order(story.launch(algorithm__loss={"type": "cross_entropy"}), source, 0, 2)
    with store.beyond_rights():
        asking = Extras(json={"overrides": b'[{"set_advantage_to_zero": true}, {}]', "images": b'["png"]'})
        GroupTokens.objects.filter(group__in=groups).update(extras=asking.pack())
    with pytest.raises(Conflict, match=r"Step 1 .* not train as .* It has images, .* replay into an external run"):
        order(story.launch(), source, 0, 2)
    assert order(story.launch(), source, 2, 2)
    over = story.launch()
    life.end(life.request_stop(over, actor="user:ada"), to=RunState.STOPPED)
    with pytest.raises(RunOver):
        order(over, source, 0, 0)


# --- over HTTP -------------------------------------------------------------------------------------------------------


def wanted(source: Run) -> dict[str, Any]:
    return {"source": source.key, "first_step": 1, "last_step": 2, "reason": "other loss"}


def test_a_replay_is_ordered_and_listed(source: Run) -> None:
    target, epoch = story.train()
    api = Api(make_token([Scope.LAUNCH, Scope.READ]))
    answer = api.post(f"runs/{target.key}/replays", wanted(source))
    assert answer.status_code == 201
    ordered = answer.json()
    assert ordered | {"replay": 0, "created_at": ""} == {
        "replay": 0,
        "source": source.key,
        "first_step": 1,
        "last_step": 2,
        "taken": 0,
        "actor": "api:test",
        "reason": "other loss",
        "created_at": "",
    }
    fetch(target, epoch, 0)
    [listed] = api.get(f"runs/{target.key}/replays").json()["replays"]
    assert listed == ordered | {"taken": 1}
    assert api.get(f"runs/{source.key}/replays").json() == {"replays": []}


def test_ordering_needs_the_scope_launch_and_for_the_source_read(source: Run) -> None:
    target, _ = story.train()
    path = f"runs/{target.key}/replays"
    before = row_counts()
    for scopes in ([Scope.READ, Scope.SUBMIT, Scope.TRAIN], [Scope.LAUNCH]):
        token = make_token(scopes)
        counts = row_counts()
        problem(Api(token).post(path, wanted(source)), 403, "forbidden")
        assert row_counts() == counts
    problem(Api(make_token([Scope.LAUNCH])).get(path), 403, "forbidden")
    problem(Api().post(path, wanted(source)), 401, "not_authenticated")
    assert row_counts()["rollouts_replay"] == before["rollouts_replay"] == 0


def test_a_source_of_another_project_is_not_there(source: Run) -> None:
    elsewhere = make_run(project=make_project("elsewhere"))
    target, _ = story.train()
    api = Api(make_token())
    problem(api.post(f"runs/{target.key}/replays", wanted(elsewhere)), 404, "not_found")
    problem(api.post(f"runs/{elsewhere.key}/replays", wanted(source)), 404, "not_found")
    problem(api.post(f"runs/{target.key}/replays", wanted(source) | {"source": "nothing"}), 404, "not_found")


def test_a_token_bound_to_a_run_replays_no_other(source: Run) -> None:
    target, _ = story.train()
    bound = Api(make_token(run=target))
    problem(bound.post(f"runs/{target.key}/replays", wanted(source)), 404, "not_found")
    assert bound.get(f"runs/{target.key}/replays").json() == {"replays": []}


SENSELESS: list[dict[str, Any]] = [
    {"first_step": "1"},
    {"first_step": 1.5},
    {"first_step": -1},
    {"last_step": 0},
    {"last_step": 3},
    {"last_step": 2**70},
    {"source": None},
    {"reason": "a\0"},
    {"more": 1},
]


def test_an_order_that_makes_no_sense_is_refused(source: Run) -> None:
    target, _ = story.train()
    api = Api(make_token())
    before = row_counts()
    for change in SENSELESS:
        problem(api.post(f"runs/{target.key}/replays", wanted(source) | change), 422, "invalid")
    assert row_counts() == before
