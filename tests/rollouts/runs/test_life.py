"""A run from launch to its end, and every group of it in the ledger."""

import msgspec
import pytest
from django.db import connection

from environments.types import Split
from rollouts.models import (
    Batch,
    Evaluation,
    Event,
    PolicyVersion,
    Rollout,
    ScoredGroup,
)
from rollouts.reasons import Reason, ReasonCode
from rollouts.selectors import metrics as metric_selectors
from rollouts.services.batches import forming
from rollouts.services.groups import evaluations, leases
from rollouts.services.runs import life, trainer_writes
from rollouts.states import (
    BatchState,
    EvaluationState,
    GroupState,
    PolicyVersionState,
    RunState,
)
from tests import store
from tests.factories import words
from tests.rollouts import story
from tests.rollouts.invariants import check_ledger
from trainers.wire import TrainingBatch

pytestmark = pytest.mark.django_db


def test_a_run_lives_from_launch_to_its_last_evaluation() -> None:
    run = story.launch(evaluation={"problems": 2, "every": 0})
    for each in story.claim(run):
        is_evaluated = each.split is Split.EVAL
        state = story.settle(each, [1.0] if is_evaluated else None)
        assert state == (GroupState.EVALUATED if is_evaluated else GroupState.READY)
    evaluations.conclude(run)

    epoch = story.register(run).epoch
    assert story.fresh(run).state == RunState.RUNNING
    for number in range(3):
        delivery = story.step(run, epoch, number)
        batch = msgspec.msgpack.decode(delivery.body, type=TrainingBatch)
        assert (batch.run, batch.step, len(batch.rollouts)) == (run.key, number, 4)
    assert story.fresh(run).live_version == 3

    assert trainer_writes.finish_training(run, epoch=epoch).state == RunState.FINISHING
    for each in story.claim(run):
        assert (each.split, each.policy_version) == (Split.EVAL, 3)
        story.settle(each, [0.5])
    evaluations.conclude(run)
    run = life.end(story.fresh(run), to=RunState.FINISHED)

    assert (run.state, run.next_step) == (RunState.FINISHED, 3)
    assert set(Batch.objects.values_list("state", flat=True)) == {BatchState.TRAINED}
    assert list(Evaluation.objects.order_by("id").values_list("version", "state", "reward_mean")) == [
        (0, EvaluationState.DONE, 1.0),
        (3, EvaluationState.DONE, 0.5),
    ]
    assert metric_selectors.series(run, ["eval/reverse_text/reward"])["eval/reverse_text/reward"] == [
        (0, 1.0, 1.0, 1.0, 0),
        (3, 0.5, 0.5, 0.5, 3),
    ]
    assert list(PolicyVersion.objects.order_by("version").values_list("state", flat=True)) == [
        *[PolicyVersionState.SUPERSEDED] * 3,
        PolicyVersionState.LIVE,
    ]
    check_ledger(run)


def test_every_change_of_a_group_is_an_event_that_says_who_and_why() -> None:
    run, epoch = story.train()
    story.step(run, epoch, 0)
    group = ScoredGroup.objects.filter(state=GroupState.TRAINED).first()
    assert group is not None
    log = Event.objects.filter(object_kind="scoredgroup", object_id=group.pk).order_by("id")
    step = Reason(ReasonCode.STEP, step=0)
    assert [(event.from_state, event.to_state, event.actor, event.reason) for event in log] == [
        ("", "playing", "driver:driver", None),
        ("playing", "ready", "driver:driver", None),
        ("ready", "batched", f"trainer:{epoch}", step),
        ("batched", "trained", f"trainer:{epoch}", step),
    ]


def test_nothing_is_claimed_before_a_version_is_live_nor_after_the_end() -> None:
    run = story.create()
    assert leases.claim(run, holder="a", limit=1, lease_s=9).reason == "no_policy"
    run = life.start(run)
    assert leases.claim(run, holder="a", limit=1, lease_s=9).reason == "no_policy"
    run = story.launch()
    life.request_stop(run, actor="user:ada")
    assert leases.claim(run, holder="a", limit=1, lease_s=9).reason == "over"
    life.end(run, to=RunState.STOPPED)
    assert leases.claim(run, holder="a", limit=1, lease_s=9).reason == "over"


def test_a_trained_token_is_attributable_to_everything_behind_it() -> None:
    run, epoch = story.train()
    delivery = story.step(run, epoch, 0)
    [first, *_] = msgspec.msgpack.decode(delivery.body, type=TrainingBatch).rollouts
    stored = Rollout.objects.get(group__key=first.group, index=first.index)
    assert first.token_ids in bytes(stored.group.tokens.token_ids)
    assert stored.group.batch_items.get().batch.step == 0
    assert (stored.first_policy_version, stored.worker) == (0, "w")
    assert stored.group.environment.name == first.environment == "reverse_text"
    assert forming.fetch(run, epoch=epoch, step=0) == delivery


@pytest.mark.parametrize(
    "tampering",
    [
        "UPDATE rollouts_scoredgroup SET state = 'stale' WHERE state = 'trained'",
        "UPDATE rollouts_scoredgroup SET state = 'ready' WHERE state = 'surplus'",
        "DELETE FROM rollouts_event WHERE object_kind = 'scoredgroup' AND from_state = ''",
        "DELETE FROM rollouts_event WHERE to_state = 'batched'",
        "DELETE FROM rollouts_grouptokens",
        "UPDATE rollouts_batch SET step = step + 1",
        "UPDATE rollouts_run SET next_step = 0",
        "UPDATE rollouts_batchitem SET group_id = (SELECT min(group_id) FROM rollouts_batchitem), replay = id",
        "INSERT INTO rollouts_lease (group_id, run_id, holder, token, claimed_at, expires_at)"
        " SELECT min(id), min(run_id), '', gen_random_uuid(), now(), now() + interval '1 s' FROM rollouts_scoredgroup",
    ],
)
def test_the_checker_of_the_ledger_sees_what_is_wrong(tampering: str) -> None:
    run, epoch = story.train()
    story.step(run, epoch, 0)
    life.end(story.fresh(run), to=RunState.FAILED, reason=words("test"))
    check_ledger(run)
    with store.beyond_rights(), connection.cursor() as cursor:
        cursor.execute(tampering)
        assert cursor.rowcount > 0
    with pytest.raises(AssertionError):
        check_ledger(run)
