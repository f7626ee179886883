"""Batches measured in tokens: generation runs ahead by as many as batches hold, and never too few to fill one."""

import random
from typing import Any

import msgspec
import pytest

from rollouts.selectors.next_batch import demand_of, measure_of, preview
from rollouts.services.batches import forming
from rollouts.services.groups import settling
from tests.rollouts import story
from trainers.wire import TrainingBatch

pytestmark = pytest.mark.django_db


def settle(claim: Any, tokens: int) -> None:
    played = [story.rollout(reward, tokens=tokens, version=claim.policy_version) for reward in (1.0, 0.0)]
    settling.settle(token=claim.token, problem_key="p", rollouts=played, worker="w")


def test_one_group_is_played_first_and_then_as_many_as_fill_the_batches_that_may_be_ahead() -> None:
    run, epoch = story.train(batch__token_batch_size=100, algorithm__max_async_level=1)
    [first] = story.claim(run)
    assert story.claim(run) == [], "it may have more tokens than two batches"
    settle(first, tokens=5)
    assert measure_of(run).groups == {"reverse_text": 10}
    claims = story.claim(run)
    assert len(claims) == 19
    for claim in claims:
        settle(claim, tokens=5)
    assert story.claim(run) == []
    delivery = forming.fetch(run, epoch=epoch, step=0)
    assert delivery is not None
    assert len(msgspec.msgpack.decode(delivery.body, type=TrainingBatch).rollouts) == 20
    assert story.claim(run) == [], "nothing newer is live"


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("lengths", [(3, 40), (60, 200)], ids=["many in a batch", "larger than a batch"])
def test_a_run_gets_to_its_end_whatever_lengths_come(level: int, lengths: tuple[int, int]) -> None:
    dice = random.Random(f"{level}{lengths}")
    run, epoch = story.train(max_steps=8, batch__token_batch_size=120, algorithm__max_async_level=level)
    for step in range(8):
        delivery = None
        while delivery is None:
            claims = story.claim(run)
            for claim in claims:
                settle(claim, dice.randint(*lengths))
            delivery = forming.fetch(run, epoch=epoch, step=step)
            assert delivery is not None or claims, f"step {step}: {preview(run, step, demand_of(run))}"
        rollouts = msgspec.msgpack.decode(delivery.body, type=TrainingBatch).rollouts
        assert sum(len(each.loss_mask) for each in rollouts) <= 120 or len(rollouts) == 2
        story.ack(run, epoch, step, delivery.sha256)
        story.announce(run, epoch, step + 1)
        story.publish(run)


def test_a_group_may_overtake_as_many_as_a_batch_holds() -> None:
    run, epoch = story.train(batch__token_batch_size=30, algorithm__max_async_level=4)
    [first] = story.claim(run)
    settle(first, tokens=5)
    claims = story.claim(run)
    assert len(claims) > 6
    for claim in claims[3:]:
        settle(claim, tokens=5)
    assert forming.fetch(run, epoch=epoch, step=0) is not None, "three are behind, and a batch holds three"
    slow, epoch = story.train(batch__token_batch_size=30, algorithm__max_async_level=4)
    [first] = story.claim(slow)
    settle(first, tokens=5)
    for claim in story.claim(slow)[4:]:
        settle(claim, tokens=5)
    assert forming.fetch(slow, epoch=epoch, step=0) is None, "four are"
