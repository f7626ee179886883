"""Claims, expiry, fencing and back-pressure."""

import uuid
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from environments.types import ErrorKind, Message, RolloutError, Split, StopReason
from rollouts.errors import Invalid, LeaseLost
from rollouts.models import Evaluation, Event, Lease, Rollout, Run, RunEnvironment, ScoredGroup
from rollouts.services.batches import forming
from rollouts.services.groups import leases, settling
from rollouts.services.runs import life
from rollouts.states import GroupState, RunState
from tests import store
from tests.factories import words
from tests.rollouts import story

pytestmark = pytest.mark.django_db
concurrent = pytest.mark.django_db(transaction=True)


@concurrent
def test_two_claimers_never_get_one_group() -> None:
    run = story.launch(**{"batch__batch_size": 32, "max_steps": 2})
    for _ in range(3):
        first, second = story.together(
            lambda: story.claim(run, 4, holder="first"), lambda: story.claim(run, 4, holder="second")
        )
        assert len(first) == len(second) == 4
        assert not {each.group for each in first} & {each.group for each in second}
    claimed = ScoredGroup.objects.filter(run=run)
    assert sorted(claimed.values_list("problem_index", flat=True)) == list(range(24))


@concurrent
def test_two_claimers_of_expired_leases_never_get_one_group() -> None:
    run = story.launch()
    assert len(story.claim(run)) == 4
    story.expire(run)
    first, second = story.together(
        lambda: story.claim(run, 3, holder="first"), lambda: story.claim(run, 3, holder="second")
    )
    assert sorted([len(first), len(second)]) == [1, 3]
    assert not {each.group for each in first} & {each.group for each in second}


@concurrent
def test_only_one_of_two_settles_of_one_lease_is_stored() -> None:
    run = story.launch()
    [claim] = story.claim(run, 1)
    results = story.together(lambda: story.settle(claim), lambda: story.settle(claim))
    assert sorted(type(result).__name__ for result in results) == ["GroupState", "LeaseLost"]
    assert Rollout.objects.count() == 2


def test_expired_lease_is_taken_over_and_its_old_holder_cannot_settle() -> None:
    run = story.launch()
    [old] = story.claim(run, 1, holder="sleeper")
    story.expire(run)
    [new] = story.claim(run, 1, holder="other")
    assert (new.group, new.problem_index) == (old.group, old.problem_index)
    assert new.token != old.token
    with pytest.raises(LeaseLost):
        story.settle(old)
    assert Rollout.objects.count() == 0
    assert leases.renew([old.token], lease_s=30) == set()
    assert story.settle(new) == GroupState.READY
    event = Event.objects.get(from_state="playing", to_state="playing")
    assert (event.kind, str(event.reason)) == ("noted", "taken over: the lease of sleeper ended")


def test_expired_lease_that_nobody_took_over_still_settles() -> None:
    run = story.launch()
    [claim] = story.claim(run, 1)
    story.expire(run)
    assert story.settle(claim) == GroupState.READY


def test_lease_that_is_renewed_is_not_taken_over() -> None:
    run = story.launch()
    first, second = story.claim(run, 2, lease_s=0.001)
    held = leases.renew([first.token, second.token, str(uuid.uuid4())], lease_s=30)
    assert held == {uuid.UUID(first.token), uuid.UUID(second.token)}
    assert {each.group for each in story.claim(run)}.isdisjoint({first.group, second.group})


def test_lease_that_was_given_back_is_taken_over_at_once_and_counts_as_no_attempt() -> None:
    run = story.launch()
    [claim] = story.claim(run, 1)
    for _ in range(2 * leases.MAX_LEASES):
        leases.release([claim.token])
        assert leases.quarantine_expired(run) == []
        [claim] = story.claim(run, 1)
    assert ScoredGroup.objects.get().lease_count == 1
    assert story.settle(claim) == GroupState.READY


def test_lease_that_was_given_back_is_not_renewed_by_what_was_on_its_way() -> None:
    run = story.launch()
    first, second = story.claim(run, 2, holder="ends")
    leases.release([first.token, second.token])
    assert leases.renew([first.token, second.token], lease_s=30) == set()
    assert {each.group for each in story.claim(run, 2, holder="other")} == {first.group, second.group}


def test_group_that_lost_three_leases_is_quarantined_with_the_evidence() -> None:
    run = story.launch()
    story.claim(run, 1, holder="driver-0")
    for lost in range(1, leases.MAX_LEASES):
        story.expire(run)
        assert leases.quarantine_expired(run) == []
        [claim] = story.claim(run, 1, holder=f"driver-{lost}")
    story.expire(run)
    [fresh] = story.claim(run, 1)
    assert fresh.group != claim.group, "a poison problem is not handed out again"
    [given_up] = leases.quarantine_expired(run)
    group = ScoredGroup.objects.get(pk=given_up)
    assert (group.key, group.state, group.lease_count) == (claim.group, GroupState.FAILED, 3)
    assert group.state_reason.startswith("quarantined: 3 leases were lost")
    assert "driver-2" in group.state_reason
    with pytest.raises(LeaseLost):
        story.settle(claim)


@pytest.mark.parametrize(("level", "ahead"), [(0, 1), (1, 2), (2, 3)])
def test_generation_runs_ahead_by_the_async_level(level: int, ahead: int) -> None:
    run, epoch = story.train(algorithm__max_async_level=level, max_steps=5)
    assert story.generate(run) == 2 * ahead
    assert leases.claim(run, holder="d", limit=9, lease_s=9).reason == "capacity"

    delivery = forming.fetch(run, epoch=epoch, step=0)
    assert delivery is not None
    assert story.generate(run) == 0, "a batch that is formed does not make room: the live version did not change"
    story.ack(run, epoch, 0, delivery.sha256)
    story.announce(run, epoch, 1)
    story.publish(run)
    assert story.generate(run) == 2


def test_generation_ends_with_the_last_step() -> None:
    run, epoch = story.train(algorithm__max_async_level=2, max_steps=2)
    assert story.generate(run) == 4
    for number in range(2):
        story.step(run, epoch, number)
    assert ScoredGroup.objects.filter(run=run).count() == 4


def test_dropped_groups_make_room_for_others() -> None:
    run = story.launch(algorithm__max_async_level=0)
    for claim in story.claim(run):
        assert story.settle(claim, [None, None]) == GroupState.FAILED
    assert len(story.claim(run)) == 2


def test_submitted_groups_of_another_size_never_stop_generation_for_good() -> None:
    """Counted as groups, four submitted ones of one rollout would fill a batch that they are too small for."""
    run, epoch = story.train(batch__batch_size=8, algorithm__max_async_level=0)
    story.submit(run, [story.scored(f"small-{number}", [1.0]) for number in range(4)], actor="api:x")
    assert forming.fetch(run, epoch=epoch, step=0) is None
    assert story.generate(run) == 2
    assert forming.fetch(run, epoch=epoch, step=0) is not None


def test_problems_of_an_environment_are_handed_out_in_order_and_environments_by_weight() -> None:
    run = story.launch(
        batch__batch_size=32,
        environments=[{"name": "reverse_text", "weight": 3.0}, {"name": "other", "weight": 1.0}],
    )
    claims = story.claim(run, 16)
    assert Counter(each.environment for each in claims) == {"reverse_text": 12, "other": 4}
    for name in ("reverse_text", "other"):
        indexes = [each.problem_index for each in claims if each.environment == name]
        assert indexes == list(range(len(indexes)))


def test_an_environment_without_room_passes_its_turns_and_has_no_claim_to_them_later() -> None:
    run = story.launch(
        batch__batch_size=64,
        environments=[{"name": "reverse_text", "weight": 1.0}, {"name": "other", "weight": 1.0}],
    )

    def claimed(limit: int, **rooms: int) -> Counter[str]:
        return Counter(
            each.environment
            for each in leases.claim(run, holder="driver", limit=limit, lease_s=30.0, rooms=rooms).claims
        )

    assert claimed(8, reverse_text=8, other=1) == {"reverse_text": 7, "other": 1}
    assert claimed(4, reverse_text=8, other=0) == {"reverse_text": 4}
    assert claimed(4, reverse_text=0, other=0) == {}
    assert claimed(6, reverse_text=8, other=8) == {"reverse_text": 3, "other": 3}, "it gets its share, and no more"


def test_evaluation_waits_for_room_and_holds_up_no_training() -> None:
    run = story.launch(
        evaluation={"problems": 2, "rollouts_per_problem": 1, "temperature": 0.0},
        environments=[{"name": "reverse_text"}, {"name": "other"}],
    )
    rooms = {"reverse_text": 0, "other": 9}
    claims = leases.claim(run, holder="driver", limit=4, lease_s=30.0, rooms=rooms).claims
    assert {each.environment for each in claims} == {"other"}
    later = leases.claim(run, holder="driver", limit=4, lease_s=30.0, rooms={"reverse_text": 9, "other": 0}).claims
    assert Counter(each.split for each in later)[Split.EVAL] == 2


def test_no_problem_is_handed_out_of_an_environment_that_only_submits() -> None:
    run = story.launch(batch__batch_size=32, evaluation={"problems": 1})
    story.submit(run, [story.scored("a", environment="outside")], actor="api:outside")
    assert {each.environment for each in story.claim(run)} == {"reverse_text"}
    assert Evaluation.objects.count() == 1


def test_evaluated_problems_share_a_slot_and_half_of_all_slots_are_left_to_training() -> None:
    run = story.launch(evaluation={"problems": 10, "rollouts_per_problem": 1}, batch__batch_size=32)

    def purposes(limit: int) -> list[Split]:
        answer = leases.claim(run, holder="driver", limit=limit, lease_s=30, evaluated_in_a_slot=4)
        return [each.split for each in answer.claims]

    assert purposes(1) == [Split.EVAL] * 4
    assert purposes(3) == [Split.EVAL] * 4 + [Split.TRAIN] * 2
    assert purposes(1) == [Split.EVAL] * 2, "now there are five slots"
    assert purposes(2) == [Split.TRAIN] * 2


def test_an_evaluation_has_what_training_does_not_want() -> None:
    run = story.launch(evaluation={"problems": 20, "rollouts_per_problem": 1})
    assert Counter(each.split for each in story.claim(run, 12)) == {Split.TRAIN: 4, Split.EVAL: 8}
    assert Counter(each.split for each in story.claim(run, 7)) == {Split.EVAL: 7}


def test_an_evaluation_has_its_part_of_an_environment_with_little_room() -> None:
    run = story.launch(
        evaluation={"problems": 2, "rollouts_per_problem": 1},
        environments=[{"name": "reverse_text", "weight": 9}, {"name": "other"}],
        batch__batch_size=64,
    )
    for _ in range(2):
        found = leases.claim(run, holder="driver", limit=8, lease_s=30.0, rooms={"reverse_text": 1, "other": 7}).claims
        assert Counter((each.environment, each.split) for each in found)["reverse_text", Split.EVAL] == 1


def test_an_evaluation_that_gets_late_has_all_slots() -> None:
    run = story.launch(evaluation={"problems": 20, "rollouts_per_problem": 1}, batch__batch_size=64)
    with store.beyond_rights():
        Evaluation.objects.update(created_at=timezone.now() - timedelta(seconds=400))
    assert Counter(each.split for each in story.claim(run, 8)) == {Split.TRAIN: 4, Split.EVAL: 4}
    with store.beyond_rights():
        Evaluation.objects.update(deadline_at=timezone.now() + timedelta(seconds=300))
    assert Counter(each.split for each in story.claim(run, 8)) == {Split.EVAL: 8}


def test_half_of_a_holders_slots_is_half_of_its_own() -> None:
    run = story.launch(evaluation={"problems": 20, "rollouts_per_problem": 1}, batch__batch_size=64)
    assert Counter(each.split for each in story.claim(run, 8, holder="a")) == {Split.TRAIN: 4, Split.EVAL: 4}
    assert Counter(each.split for each in story.claim(run, 4, holder="b")) == {Split.TRAIN: 2, Split.EVAL: 2}
    assert Counter(each.split for each in story.claim(run, 2, holder="a")) == {Split.TRAIN: 1, Split.EVAL: 1}


def test_evaluation_is_claimed_beside_training_and_sampled_as_its_plan_says() -> None:
    run = story.launch(evaluation={"problems": 3, "rollouts_per_problem": 1, "temperature": 0.0})
    claims = story.claim(run, 6)
    evaluation, training = claims[:3], claims[3]
    assert [(each.split, each.problem_index, each.group_size) for each in evaluation] == [
        (Split.EVAL, number, 1) for number in range(3)
    ]
    assert (training.split, training.group_size, training.temperature) == (Split.TRAIN, 2, 1.0)


def test_lost_groups_are_claimed_before_any_other() -> None:
    run = story.launch()
    [lost] = story.claim(run, 1)
    story.expire(run)
    assert story.claim(run, 1)[0].group == lost.group


@pytest.mark.parametrize("sizes", [[], [1.0], [1.0, 0.0, 1.0]])
def test_a_group_is_settled_whole(sizes: list[float]) -> None:
    run = story.launch()
    [claim] = story.claim(run, 1)
    with pytest.raises(Invalid):
        story.settle(claim, sizes)
    assert Rollout.objects.count() == 0
    assert story.settle(claim, [1.0, None]) == GroupState.READY


@pytest.mark.parametrize(
    ("rewards", "overrides", "state", "reason"),
    [
        ([1.0, 0.0], {}, GroupState.READY, ""),
        ([1.0, None], {}, GroupState.READY, ""),
        ([1.0, 1.0], {}, GroupState.READY, ""),
        ([1.0, 1.0], {"algorithm__filter_zero_advantage": True}, GroupState.FILTERED, "zero advantage"),
        ([None, None], {}, GroupState.FAILED, "every rollout failed"),
    ],
)
def test_a_settled_group_goes_where_it_belongs(
    rewards: list[float | None], overrides: dict[str, Any], state: GroupState, reason: str
) -> None:
    run = story.launch(**overrides)
    [claim] = story.claim(run, 1)
    assert story.settle(claim, rewards) == state
    group = ScoredGroup.objects.get()
    assert group.state_reason.startswith(reason)
    assert (group.rollout_count, group.token_count) == (2, 8)
    assert group.problem_key == "p/0"


def test_group_of_which_no_token_was_sampled_is_not_trained_on() -> None:
    run = story.launch()
    [claim] = story.claim(run, 1)
    unsampled = [story.rollout(reward, loss_mask=[0] * 4) for reward in (1.0, 0.0)]
    state = settling.settle(token=claim.token, problem_key="p", rollouts=unsampled, worker="w")
    assert state == GroupState.FAILED


def test_text_that_postgres_cannot_hold_is_repaired_when_a_driver_settles() -> None:
    run = story.launch()
    [claim] = story.claim(run, 1)
    hostile = "a\x00b\ud800"
    broken = RolloutError(kind=ErrorKind.REWARD, type="E", message=hostile)
    played = [
        story.rollout(1.0, messages=[Message(role="tool", content=hostile, name=hostile)]),
        story.rollout(None, stop_reason=StopReason.ERROR, error=broken),
    ]
    settling.settle(token=claim.token, problem_key=hostile, rollouts=played, worker="w")
    group = ScoredGroup.objects.get()
    assert group.problem_key == "a\ufffdb\ufffd"
    first, second = group.rollouts.order_by("index")
    assert first.messages == [{"role": "tool", "content": "a\ufffdb\ufffd", "name": "a\ufffdb\ufffd"}]
    assert second.error["message"] == "a\ufffdb\ufffd"


@concurrent
def test_a_claim_on_its_way_leaves_nothing_behind_in_a_run_that_ends() -> None:
    for _ in range(5):
        run = story.launch(batch__batch_size=32)
        life.request_stop(run, actor="user:ada")
        Run.objects.filter(pk=run.pk).update(state=RunState.RUNNING)  # a claim that read the state before the stop
        story.together(
            lambda run=run: story.claim(run),
            lambda run=run: life.end(story.fresh(run), to=RunState.FAILED, reason=words("test")),
        )
        assert not Lease.objects.filter(run=run).exists()
        assert not ScoredGroup.objects.filter(run=run, state=GroupState.PLAYING).exists()


@pytest.mark.parametrize("limit", [1, 32])
def test_a_claim_makes_as_many_queries_whatever_its_limit(limit: int, django_assert_num_queries: Any) -> None:
    run = story.launch(batch__batch_size=64)
    with django_assert_num_queries(7):
        assert len(story.claim(run, limit)) == limit
    assert RunEnvironment.objects.get(run=run).cursor == limit
