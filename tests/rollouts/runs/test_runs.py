"""The life of a run and the writes of its trainer."""

from typing import Any

import pytest

from rollouts.errors import Conflict, Invalid, LeaseLost, RunOver, StaleEpoch, StateConflict
from rollouts.models import Checkpoint, Evaluation, Event, Lease, MetricPoint, Replica, ReplicaKind, Run, ScoredGroup
from rollouts.selectors import runs as run_selectors
from rollouts.services.batches import forming
from rollouts.services.groups import leases
from rollouts.services.runs import checkpoints, life, replicas, trainer_writes
from rollouts.states import EvaluationState, GroupState, ReplicaState, RunState
from tests.factories import words
from tests.rollouts import story
from trainers.wire import CheckpointIn

pytestmark = pytest.mark.django_db
concurrent = pytest.mark.django_db(transaction=True)


def checkpoint(run: Run, step: int = 1, **fields: Any) -> CheckpointIn:
    path = str(run.directory / "checkpoints" / f"step_{step}")
    return CheckpointIn(**({"step": step, "path": path, "manifest_sha256": "b" * 64, "size_bytes": 5} | fields))


def test_a_run_keeps_its_resolved_config_and_where_each_value_came_from() -> None:
    run = story.create()
    assert (run.state, run.kind, run.max_steps) == (RunState.PENDING, "rl", 3)
    assert run.parsed.batch.batch_size == 4
    assert str(run.origins["batch.batch_size"]) == "command line"
    assert str(run.origins["optimizer.lr"]) == "preset reverse-text-rl"
    assert [each.name for each in run.environments.all()] == ["reverse_text"]
    [event] = Event.objects.filter(run=run)
    assert (event.from_state, event.to_state, event.actor) == ("", "pending", "user:ada")


def test_a_run_that_does_not_fit_the_database_is_refused() -> None:
    with pytest.raises(Invalid, match="max_steps"):
        story.create(max_steps=2**31)


def test_stopping_twice_is_stopping_once() -> None:
    run = story.launch()
    life.request_stop(run, actor="user:ada", reason="enough")
    again = life.request_stop(run, actor="user:bob", reason="mine")
    assert (again.state, again.state_reason) == (RunState.STOPPING, "enough")
    assert Event.objects.filter(to_state="stopping").count() == 1
    life.end(run, to=RunState.STOPPED)
    assert life.request_stop(run, actor="user:bob").state == RunState.STOPPED


@concurrent
def test_of_two_who_stop_a_run_at_once_one_is_in_the_log() -> None:
    run = story.launch()
    results = story.together(*[lambda: life.request_stop(story.fresh(run), actor="user:ada")] * 2)
    assert [result.state for result in results] == [RunState.STOPPING] * 2
    assert Event.objects.filter(to_state="stopping").count() == 1


def test_a_run_that_is_over_cannot_be_stopped() -> None:
    run = story.launch()
    life.end(run, to=RunState.FAILED, reason=words("test"))
    with pytest.raises(StateConflict, match="nothing to stop"):
        life.request_stop(run, actor="user:ada")


def test_a_state_is_changed_only_from_one_that_allows_it() -> None:
    run = story.launch()
    with pytest.raises(StateConflict, match="is starting, which cannot become starting"):
        life.start(run)
    with pytest.raises(StateConflict, match="cannot become finished"):
        life.end(run, to=RunState.FINISHED)
    with pytest.raises(ValueError, match="is not an end"):
        life.end(run, to=RunState.RUNNING)


@concurrent
def test_of_two_processes_that_start_a_run_one_wins() -> None:
    run = story.create()
    results = story.together(*[lambda: life.start(story.fresh(run))] * 2)
    assert sorted(type(result).__name__ for result in results) == ["Run", "StateConflict"]


def test_the_end_leaves_no_group_lease_or_evaluation_open() -> None:
    run, epoch = story.train(evaluation={"problems": 1, "rollouts_per_problem": 1})
    evaluation, *claims = story.claim(run)
    assert evaluation.split == "eval"
    for claim in claims[:3]:
        story.settle(claim)
    forming.fetch(run, epoch=epoch, step=0)
    life.request_stop(run, actor="user:ada")
    life.end(run, to=RunState.STOPPED)
    states = dict(ScoredGroup.objects.values_list("pk", "state"))
    assert set(states.values()) == {GroupState.SURPLUS}
    assert {str(group.reason) for group in ScoredGroup.objects.all()} == {"the run was stopped"}
    assert not Lease.objects.exists()
    assert Evaluation.objects.get().state == EvaluationState.EXPIRED
    with pytest.raises(LeaseLost):
        story.settle(claims[3])


def test_the_ledger_sums_to_the_groups_that_were_created() -> None:
    run, epoch = story.train(max_steps=4, algorithm__max_off_policy_steps=1, algorithm__filter_zero_advantage=True)
    first, second, *_ = story.claim(run)
    story.settle(first, [1.0, 1.0])
    story.settle(second, [None, None])
    for number in range(4):
        if number == 3:
            story.submit(story.fresh(run), [story.scored("late", version=0)], actor="api:x")
            assert forming.fetch(run, epoch=epoch, step=3) is None
        for claim in story.claim(run):
            story.settle(claim)
        delivery = forming.fetch(run, epoch=epoch, step=number)
        if delivery is None:  # two leases are still held
            Lease.objects.filter(run=run).update(claimed_at="2000-01-01T00:00Z", expires_at="2000-01-02T00:00Z")
            story.generate(run)
            delivery = forming.fetch(run, epoch=epoch, step=number)
        assert delivery is not None
        story.ack(run, epoch, number, delivery.sha256)
        story.announce(run, epoch, number + 1)
        story.publish(run)
    trainer_writes.finish_training(run, epoch=epoch)
    story.claim(run)
    life.end(story.fresh(run), to=RunState.FINISHED)
    lines = run_selectors.ledger(run)
    assert sum(line.groups for line in lines) == ScoredGroup.objects.count()
    created = Event.objects.filter(object_kind="scoredgroup", from_state="").count()
    assert sum(line.groups for line in lines) == created
    assert {(line.state, line.heading) for line in lines} >= {
        ("trained", ""),
        ("stale", "lag over 1 steps"),
        ("filtered", "zero advantage: all rewards are equal"),
        ("failed", "every rollout failed"),
    }


def test_registering_raises_the_epoch_and_names_the_checkpoints_newest_first() -> None:
    run, epoch = story.train(trainer__keep_checkpoints=1)
    assert epoch == 1
    for step in (1, 2):
        checkpoints.add_checkpoint(run, epoch=epoch, checkpoint=checkpoint(run, step))
    registration = story.register(run)
    assert (registration.epoch, registration.run, registration.config) == (2, run.key, run.config)
    assert [each.step for each in registration.checkpoints] == [2, 1]
    assert registration.run_dir == str(run.directory)
    assert [each.step for each in checkpoints.delete_checkpoints(run)] == [1]
    assert [each.step for each in story.register(run).checkpoints] == [2]


def test_the_newest_checkpoints_and_every_so_many_steps_one_are_kept() -> None:
    run, epoch = story.train(trainer__keep_checkpoints=2, trainer__keep_every=4, max_steps=9)
    for step in range(1, 10):
        checkpoints.add_checkpoint(run, epoch=epoch, checkpoint=checkpoint(run, step))
        checkpoints.delete_checkpoints(run)
    assert [each.step for each in story.register(run).checkpoints] == [9, 8, 4]


def test_registering_makes_the_trainers_replica_ready() -> None:
    run = story.launch()
    replica = replicas.create(run, kind=ReplicaKind.TRAINER, slot=0, launcher="local")
    story.register(run)
    replica = Replica.objects.get(pk=replica.pk)
    assert replica.state == ReplicaState.READY
    assert replica.state_reason == "epoch 1: 1 processes, node pid 7"


@concurrent
def test_two_trainers_that_register_at_once_get_different_epochs() -> None:
    run = story.launch()
    registrations = story.together(*[lambda: story.register(run)] * 3)
    assert sorted(each.epoch for each in registrations) == [1, 2, 3]


@pytest.mark.parametrize("to", [RunState.STOPPED, RunState.FAILED])
def test_a_run_that_is_over_takes_no_trainer_and_none_of_its_writes(to: RunState) -> None:
    run, epoch = story.train()
    if to == RunState.STOPPED:
        life.request_stop(run, actor="user:ada")
    life.end(run, to=to)
    with pytest.raises(RunOver):
        story.register(run)
    with pytest.raises(RunOver):
        story.ack(run, epoch, 0, None)
    with pytest.raises(RunOver):
        story.announce(run, epoch, 1)
    with pytest.raises(RunOver):
        checkpoints.add_checkpoint(run, epoch=epoch, checkpoint=checkpoint(run))


def test_training_finishes_once_and_only_after_its_last_step() -> None:
    run, epoch = story.train()
    with pytest.raises(Conflict, match="0 of 3 steps"):
        trainer_writes.finish_training(run, epoch=epoch)
    for number in range(3):
        story.step(run, epoch, number)
    first = trainer_writes.finish_training(run, epoch=epoch)
    second = trainer_writes.finish_training(run, epoch=epoch)
    assert first.trainer_finished_at == second.trainer_finished_at
    assert second.state == RunState.FINISHING
    with pytest.raises(RunOver):
        story.register(run)
    with pytest.raises(RunOver):
        forming.fetch(run, epoch=epoch, step=2)


def test_groups_that_wait_when_training_finishes_are_surplus() -> None:
    run, epoch = story.train(max_steps=1)
    story.generate(run)
    story.submit(run, [story.scored("late")], actor="api:x")
    story.step(run, epoch, 0)
    trainer_writes.finish_training(run, epoch=epoch)
    late = ScoredGroup.objects.get(key="late")
    assert (late.state, late.state_reason) == (GroupState.SURPLUS, "every step has its batch")


def test_a_supervised_run_acknowledges_steps_without_batches() -> None:
    run = story.launch_supervised()
    epoch = story.register(run).epoch
    assert story.ack(run, epoch, 0, None, **{"loss/mean": 2.0}) == 1
    assert MetricPoint.objects.get(run=run).value == 2.0
    with pytest.raises(Conflict, match="no batches"):
        forming.fetch(run, epoch=epoch, step=1)
    assert leases.claim(run, holder="x", limit=1, lease_s=9).reason == "over"
    with pytest.raises(Conflict, match="takes no groups"):
        story.submit(run, [story.scored("a")], actor="api:x")


@pytest.mark.parametrize(
    "path",
    ["/etc", "{run}", "{run}/checkpoints", "{run}/weights/step_1", "{run}/checkpoints/../../other", "", "a\0b"],
)
def test_a_checkpoint_outside_its_folder_is_refused(path: str) -> None:
    run, epoch = story.train()
    with pytest.raises(Invalid) as caught:
        checkpoints.add_checkpoint(run, epoch=epoch, checkpoint=checkpoint(run, path=path.format(run=run.directory)))
    assert set(caught.value.fields) == {"path"}
    assert not Checkpoint.objects.exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("manifest_sha256", "x" * 64),
        ("manifest_sha256", "a" * 65),
        ("manifest_sha256", ""),
        ("size_bytes", -1),
        ("size_bytes", 2**63),
        ("step", -1),
        ("step", 4),
        ("step", 10**30),
    ],
)
def test_a_checkpoint_that_makes_no_sense_is_refused(field: str, value: Any) -> None:
    run, epoch = story.train()
    with pytest.raises(Invalid) as caught:
        checkpoints.add_checkpoint(run, epoch=epoch, checkpoint=checkpoint(run, **{field: value}))
    assert set(caught.value.fields) == {field}


def test_a_checkpoint_that_is_written_again_replaces_its_manifest() -> None:
    run, epoch = story.train()
    checkpoints.add_checkpoint(run, epoch=epoch, checkpoint=checkpoint(run))
    epoch = story.register(run).epoch
    checkpoints.add_checkpoint(run, epoch=epoch, checkpoint=checkpoint(run, manifest_sha256="c" * 64))
    row = Checkpoint.objects.get()
    assert (row.manifest_sha256, row.epoch) == ("c" * 64, 2)
    assert Event.objects.filter(object_kind="checkpoint").count() == 1


def test_a_checkpoint_that_is_written_again_after_it_was_deleted_is_resumed_from() -> None:
    run, epoch = story.train(trainer__keep_checkpoints=1)
    for step in (1, 2):
        checkpoints.add_checkpoint(run, epoch=epoch, checkpoint=checkpoint(run, step))
    assert [each.step for each in checkpoints.delete_checkpoints(run)] == [1]
    # The files of the second do not verify, so its successor starts over.
    epoch = story.register(run).epoch
    checkpoints.add_checkpoint(run, epoch=epoch, checkpoint=checkpoint(run, 1))
    assert [each.step for each in checkpoints.delete_checkpoints(run)] == [2]
    assert [each.step for each in story.register(run).checkpoints] == [1]
    told = Event.objects.filter(object_kind="checkpoint", object_id=Checkpoint.objects.get(step=1).pk).order_by("id")
    assert list(told.values_list("to_state", flat=True)) == ["complete", "deleted", "complete"]


def test_deaths_of_the_trainer_are_counted_until_a_step_of_progress() -> None:
    run, epoch = story.train()
    assert [trainer_writes.count_trainer_restart(run) for _ in range(2)] == [1, 2]
    story.step(run, epoch, 0)
    assert story.fresh(run).trainer_restarts == 0


@concurrent
def test_a_zombie_that_acknowledges_while_its_successor_registers_is_refused_or_was_first() -> None:
    for _ in range(4):
        run, epoch = story.train()
        story.generate(run)
        delivery = forming.fetch(run, epoch=epoch, step=0)
        assert delivery is not None
        acked, registered = story.together(
            lambda run=run, epoch=epoch, sha=delivery.sha256: story.ack(run, epoch, 0, sha),
            lambda run=run: story.register(run),
        )
        assert registered.epoch == 2
        assert acked == 1 or isinstance(acked, StaleEpoch)
        assert story.fresh(run).next_step == (1 if acked == 1 else 0)


def test_the_ledger_names_the_kind_of_a_reason_not_every_detail() -> None:
    run = story.launch()
    for number, claim in enumerate(story.claim(run)):
        ScoredGroup.objects.filter(key=claim.group).update(
            state="failed",
            reason_code="all_failed",
            reason_params={"error": f"error {number}"},
            settled_at="2026-01-01T00:00Z",
        )
    [line] = run_selectors.ledger(run)
    assert (line.state, line.heading, line.groups) == ("failed", "every rollout failed", 4)
