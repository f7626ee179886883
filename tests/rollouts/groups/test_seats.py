"""Groups of matches: how many rollouts they have, what each is compared with, and where the seat goes with it."""

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.types import Claim, Message, PlayedGroup
from rollouts.errors import Invalid
from rollouts.models import Evaluation, MetricPoint, Rollout, Run, ScoredGroup
from rollouts.services.batches import forming
from rollouts.services.curation import examples, exchange
from rollouts.services.curation.examples import Selection
from rollouts.services.groups import evaluations, next_groups, settling
from rollouts.states import EvaluationState, GroupState
from tests.rollouts import story
from trainers.config import ConfigError, resolve
from trainers.wire import TrainingBatch

pytestmark = pytest.mark.django_db

KUHN = [{"name": "kuhn_poker"}]
MIXED = [{"name": "kuhn_poker"}, {"name": "reverse_text"}]
SEATS = ["first", "second"]


def settle(claim: Claim, rewards: list[float | None], seats: list[str] | None = None, **fields: Any) -> GroupState:
    """A group whose rewards are those of one match after another."""
    seats = seats or SEATS * (len(rewards) // 2)
    played = [story.rollout(reward, seat=seat, **fields) for reward, seat in zip(rewards, seats, strict=True)]
    return settling.settle(token=claim.token, problem_key="KQ", rollouts=played, worker="w")


def batch(run: Run, epoch: int, step: int = 0) -> TrainingBatch:
    delivery = forming.fetch(run, epoch=epoch, step=step)
    assert delivery is not None
    return msgspec.msgpack.decode(delivery.body, type=TrainingBatch)


def test_a_claim_says_who_sits_where_and_capacity_counts_the_rollouts_of_all_seats() -> None:
    run = story.launch(environments=KUHN, batch__batch_size=8)
    claims = story.claim(run)
    assert len(claims) == 4  # two batches of 8, and a group of two matches has 4
    assert [claim.seats for claim in claims] == [{"first": "run", "second": "run"}] * 4
    assert {claim.group_size for claim in claims} == {2}
    assert next_groups.capacity(run).capacity == 0


def test_groups_of_several_sizes_fill_what_may_be_generated_and_no_more() -> None:
    run = story.launch(environments=MIXED, batch__batch_size=8)
    claims = story.claim(run)
    sizes = [claim.group_size * max(1, len(claim.seats)) for claim in claims]
    assert 16 <= sum(sizes) < 16 + max(sizes)
    assert set(sizes) == {2, 4}
    assert story.claim(run) == []


def test_a_batch_is_full_by_the_rollouts_of_all_seats_with_a_baseline_for_each_seat() -> None:
    run, epoch = story.train(environments=KUHN, batch__batch_size=8, algorithm__advantage="mean")
    for claim in story.claim(run, 2):
        assert settle(claim, [1.0, -1.0, -2.0, 2.0]) == GroupState.READY
    rollouts = batch(run, epoch).rollouts
    assert [each.advantage for each in rollouts[:4]] == [1.5, -1.5, -1.5, 1.5]
    assert len(rollouts) == 8
    points = dict(MetricPoint.objects.filter(run=run, key__startswith="reward/kuhn").values_list("key", "value"))
    assert points == {
        "reward/kuhn_poker/mean": 0.0,
        "reward/kuhn_poker/first/mean": -0.5,
        "reward/kuhn_poker/second/mean": 0.5,
    }


def test_seats_that_each_got_the_same_every_time_teach_nothing_although_they_differ() -> None:
    run = story.launch(environments=KUHN, algorithm__filter_zero_advantage=True)
    first, second = story.claim(run, 2)
    assert settle(first, [1.0, -1.0, 1.0, -1.0]) == GroupState.FILTERED
    assert settle(second, [1.0, -1.0, -1.0, 1.0]) == GroupState.READY


def test_a_step_counts_groups_without_signal_by_what_is_compared() -> None:
    run, epoch = story.train(environments=KUHN, batch__batch_size=8)
    first, second = story.claim(run, 2)
    settle(first, [1.0, -1.0, 1.0, -1.0])
    settle(second, [1.0, -1.0, -1.0, 1.0])
    batch(run, epoch)
    points = dict(MetricPoint.objects.filter(run=run, step=0).values_list("key", "value"))
    assert points["problems/no_signal_share"] == points["reward/zero_advantage_share"] == 0.5


def test_a_seat_that_was_never_asked_counts_and_is_not_trained() -> None:
    run, epoch = story.train(environments=KUHN, batch__batch_size=4, algorithm__advantage="mean")
    [claim] = story.claim(run, 1)
    played = [
        story.rollout(reward, seat=seat) for reward, seat in zip([-1.0, 1.0, 1.0], [*SEATS, "first"], strict=True)
    ]
    unasked = msgspec.structs.replace(played[1], token_ids=[], loss_mask=[], inference_logprobs=[], reward=-1.0)
    settling.settle(token=claim.token, problem_key="KQ", rollouts=[*played, unasked], worker="w")
    assert [(each.index, each.advantage) for each in batch(run, epoch).rollouts] == [(0, -1.0), (1, 1.0), (2, 1.0)]
    [line] = exchange.export_groups(run)
    assert json.loads(line)["rollyard"]["seats"] == [*SEATS, "first"]


@pytest.mark.parametrize(
    ("rewards", "seats", "words"),
    [
        ([1.0, -1.0], SEATS, "asks for 4, these are 2"),
        ([1.0, 1.0, -1.0, -1.0], ["first", "first", "second", "second"], "of the seats first, second in this order"),
        ([1.0, -1.0, 1.0, -1.0], [""] * 4, "of the seats first, second in this order"),
    ],
)
def test_a_group_is_settled_with_every_seat_of_every_match(
    rewards: list[float | None], seats: list[str], words: str
) -> None:
    run = story.launch(environments=KUHN)
    [claim] = story.claim(run, 1)
    with pytest.raises(Invalid) as refused:
        settle(claim, rewards, seats)
    assert words in refused.value.fields["rollouts"]
    assert not Rollout.objects.exists()


def test_groups_from_outside_have_seats_too_and_files_of_them_keep_those() -> None:
    run = story.launch()
    said = [Message("user", "a"), Message("assistant", "b")]
    rollouts = [
        story.rollout(reward, seat=seat, messages=said)
        for reward, seat in zip([1.0, 3.0, 2.0, 0.0], ["white", "black"] * 2, strict=True)
    ]
    story.submit(run, [PlayedGroup(environment="chess", problem_key="p", rollouts=rollouts)], actor="token:t")
    assert list(Rollout.objects.order_by("index").values_list("seat", flat=True)) == ["white", "black"] * 2
    best = [json.loads(line) for line in examples.export_examples(run, Selection(best=1))]
    assert {(line["seat"], line["rollout"]) for line in best} == {("white", 2), ("black", 1)}
    [line] = exchange.export_groups(run)
    group = exchange._group(exchange.Line("f:1", line.strip()), "key", "chess")
    assert [rollout.seat for rollout in group.rollouts] == ["white", "black"] * 2


@pytest.mark.parametrize("seat", ["a" * 41, "a\u202eb"])
def test_a_seat_has_a_name_that_can_be_read(seat: str) -> None:
    group = PlayedGroup(environment="chess", problem_key="p", rollouts=[story.rollout(1.0, seat=seat)])
    run = story.launch()
    with pytest.raises(Invalid) as refused:
        story.submit(run, [group], actor="token:t")
    assert "seat" in str(refused.value.fields)


def test_an_evaluation_says_what_each_seat_won_and_what_its_environment_makes_of_it() -> None:
    run = story.launch(environments=KUHN, evaluation={"problems": 1})
    evaluation = Evaluation.objects.get(run=run)
    [claim] = story.claim(run, 1)
    group = ScoredGroup.objects.get(key=claim.group)
    assert group.evaluation_id == evaluation.pk
    bets = {f"bet/{card}{history}": 0.5 for card in "JQK" for history in ("", "p", "b", "pb")}
    metrics = bets | {key.replace("bet", "illegal"): 0.0 for key in bets}
    settle(claim, [1.0, -1.0] * claim.group_size, metrics=metrics)
    evaluations.conclude(run)
    points = dict(MetricPoint.objects.filter(run=run, key__startswith="eval/").values_list("key", "value"))
    assert math.isclose(points["eval/kuhn_poker/exploitability"], 11 / 24)
    assert (points["eval/kuhn_poker/first/reward"], points["eval/kuhn_poker/second/reward"]) == (1.0, -1.0)


def test_an_evaluation_of_more_seats_than_metrics_may_name_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    run = story.launch(environments=KUHN, evaluation={"problems": 1})
    [claim] = story.claim(run, 1)
    settle(claim, [1.0, -1.0] * claim.group_size)
    monkeypatch.setattr("rollouts.services.metrics.MAX_KEYS", 3)
    evaluations.conclude(run)
    assert Evaluation.objects.get(run=run).state == EvaluationState.DONE
    keys = MetricPoint.objects.filter(run=run, key__startswith="eval/").values_list("key", flat=True)
    assert set(keys) == {"eval/kuhn_poker/reward", "eval/kuhn_poker/tokens"}


@given(
    group_size=st.integers(2, 6),
    batches=st.integers(1, 5),
    mixture=st.lists(st.sampled_from(["kuhn_poker", "reverse_text", "others"]), min_size=1, max_size=3, unique=True),
    trained=st.integers(1, 4),
)
def test_a_config_takes_batches_that_groups_of_every_environment_fill_exactly(
    group_size: int, batches: int, mixture: list[str], trained: int
) -> None:
    """`others` has so many seats of which the run plays `trained`."""
    rows: list[dict[str, Any]] = [{"name": name} for name in mixture]
    for row in rows:
        if row["name"] == "others":
            row |= {
                "name": "verifiers",
                "python": "somewhere",
                "args": {"id": "x"},
                "seats": {str(at): "run" for at in range(trained)},
            }
    sizes = {"kuhn_poker": 2 * group_size, "reverse_text": group_size, "others": trained * group_size}
    whole = math.lcm(*(sizes[name] for name in mixture))
    overrides = {
        "environments": rows,
        "sampling.group_size": group_size,
        "batch.batch_size": batches * whole,
        "evaluation": None,
    }
    config = resolve("reverse-text-rl", overrides=overrides).config
    assert sorted(config.group_rollouts.values()) == sorted(sizes[name] for name in mixture)
    assert config.batch.batch_size % config.smallest_group == 0
    with pytest.raises(ConfigError, match="multiple"):
        resolve("reverse-text-rl", overrides=overrides | {"batch.batch_size": batches * whole + 1})


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"name": "kuhn_poker", "seats": {"third": "run"}}, "is no seat of kuhn_poker. It has: first, second."),
        ({"name": "reverse_text", "seats": {"first": "run"}}, "is no seat of reverse_text. It has: none."),
        ({"name": "kuhn_poker", "seats": {"second": "teacher"}}, "'teacher' is nobody who plays"),
    ],
)
def test_a_config_says_which_seat_or_player_there_is_not(row: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match="seats") as refused:
        resolve("reverse-text-rl", overrides={"environments": [row]})
    assert words in str(refused.value)
