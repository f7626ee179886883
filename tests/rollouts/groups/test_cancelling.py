"""Groups in play that could not be trained any more are given up, not played to their end."""

import uuid

import pytest

from environments.types import Claim
from rollouts.errors import LeaseLost
from rollouts.models import Lease, ScoredGroup
from rollouts.reasons import ReasonCode
from rollouts.services.batches import forming
from rollouts.services.groups import leases, next_groups
from rollouts.services.groups.cancelling import cancel_stale
from rollouts.states import GroupState
from tests.rollouts import story

pytestmark = pytest.mark.django_db


def group_of(claim: Claim) -> ScoredGroup:
    return ScoredGroup.objects.get(key=claim.group)


def test_a_group_that_is_too_old_for_the_next_batch_is_not_played_to_its_end() -> None:
    run, epoch = story.train(algorithm__max_off_policy_steps=1, max_steps=9)
    slow, *_ = story.claim(run, 1)
    story.step(run, epoch, 0)
    assert cancel_stale(story.fresh(run)) == []
    story.step(run, epoch, 1)
    assert cancel_stale(story.fresh(run)) == [group_of(slow).pk]
    assert (group_of(slow).state, group_of(slow).reason_code) == (GroupState.STALE, ReasonCode.LAGGED_IN_PLAY)
    told = "stale before it was played to its end: begun on version 0, too far from step 2"
    assert str(group_of(slow).reason) == told
    assert leases.renew([slow.token], lease_s=30) == set()
    with pytest.raises(LeaseLost):
        story.settle(slow)
    assert cancel_stale(story.fresh(run)) == []


def test_a_group_that_was_taken_over_is_as_old_as_its_newest_lease() -> None:
    run, epoch = story.train(algorithm__max_off_policy_steps=1, max_steps=9)
    story.claim(run, 1)
    story.step(run, epoch, 0)
    story.step(run, epoch, 1)
    story.expire(run)
    [again] = story.claim(run, 1, holder="another")
    assert again.policy_version == Lease.objects.get(token=uuid.UUID(again.token)).policy_version == 2
    assert cancel_stale(story.fresh(run)) == []
    assert story.settle(again) == GroupState.READY


def test_groups_of_an_evaluation_are_played_however_old_they_are() -> None:
    run, epoch = story.train(algorithm__max_off_policy_steps=1, evaluation={"problems": 1}, max_steps=9)
    [evaluation] = story.claim(run, 1)
    for step in range(2):
        for each in story.claim(run, 2):
            story.settle(each, version=step)
        delivery = forming.fetch(run, epoch=epoch, step=step)
        assert delivery is not None
        story.ack(run, epoch, step, delivery.sha256)
    assert cancel_stale(story.fresh(run)) == []
    assert group_of(evaluation).state == GroupState.PLAYING


def test_an_oversampled_batch_does_not_wait_for_its_slowest_groups() -> None:
    run, epoch = story.train(batch__oversampling=1.5, algorithm__max_async_level=0)
    slow, first, second = story.claim(run)
    assert story.claim(run) == []
    for each in (first, second):
        story.settle(each)
    delivery = forming.fetch(run, epoch=epoch, step=0)
    assert delivery is not None
    assert (group_of(slow).state, group_of(slow).reason_code) == (GroupState.SURPLUS, ReasonCode.OVERSAMPLED)
    assert str(group_of(slow).reason) == "the batch was full without it (batch.oversampling): step 0"
    assert not Lease.objects.filter(run=run).exists()
    assert story.claim(run) == []  # nor is one begun for the next batch, whose version is not there yet
    story.ack(run, epoch, 0, delivery.sha256)
    story.announce(run, epoch, 1)
    story.publish(run)
    assert len(story.claim(run)) == 3


def test_no_more_is_given_up_than_was_begun_too_much_nor_what_is_for_later_batches() -> None:
    run, epoch = story.train(batch__oversampling=1.5, algorithm__max_async_level=1)
    claims = story.claim(run)
    assert len(claims) == 5
    _one, two, three, four, five = claims
    for each in (three, four):
        story.settle(each)
    assert forming.fetch(run, epoch=epoch, step=0) is not None
    states = [group_of(each).state for each in claims]
    left = [GroupState.PLAYING, GroupState.BATCHED, GroupState.BATCHED, GroupState.PLAYING]
    assert states == [GroupState.SURPLUS, *left]
    for each in (two, five):
        assert story.settle(each) == GroupState.READY


@pytest.mark.parametrize(("size", "state"), [(2, GroupState.SURPLUS), (4, GroupState.PLAYING)])
def test_a_group_that_has_more_than_was_begun_too_much_is_not_given_up(size: int, state: GroupState) -> None:
    environments = [
        {"name": "reverse_text", "group_size": size},
        {"name": "other", "group_size": 4, "weight": 4 / size},  # a group of each in turn
    ]
    run, epoch = story.train(environments=environments, batch__oversampling=1.5, algorithm__max_async_level=0)
    slow, other = story.claim(run, 2)
    assert (slow.group_size, other.group_size) == (size, 4)
    story.settle(other)
    assert forming.fetch(run, epoch=epoch, step=0) is not None
    assert group_of(slow).state == state


def test_nothing_is_begun_beyond_the_last_batch() -> None:
    run, epoch = story.train(batch__oversampling=1.5, algorithm__max_async_level=0, max_steps=1)
    claims = story.claim(run)
    for each in claims:
        story.settle(each)
    assert forming.fetch(run, epoch=epoch, step=0) is not None
    assert story.claim(run) == []


def test_generation_runs_no_further_ahead_than_what_it_makes_may_be_old() -> None:
    run, epoch = story.train(algorithm__max_async_level=2, algorithm__max_off_policy_steps=0, max_steps=9)
    story.generate(run)
    delivery = forming.fetch(run, epoch=epoch, step=0)
    assert delivery is not None
    assert next_groups.capacity(story.fresh(run)).capacity == 0, "it would be stale for the next batch"
    story.ack(run, epoch, 0, delivery.sha256)
    story.announce(run, epoch, 1)
    assert story.publish(run) == 1
    assert next_groups.capacity(story.fresh(run)).capacity > 0
