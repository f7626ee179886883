"""Groups that teach nothing are dropped when they are scored, if the run says so, and others are played instead."""

from collections.abc import Sequence
from typing import Any

import pytest

from rollouts.models import MetricPoint, ScoredGroup
from rollouts.reasons import ReasonCode
from rollouts.services.batches import forming
from rollouts.states import GroupState
from tests.rollouts import story

pytestmark = pytest.mark.django_db

ALL, NONE, NARROW = {"all_solved": True}, {"none_solved": True}, {"min_reward_range": 0.2}


@pytest.mark.parametrize(
    ("filters", "rewards", "code"),
    [
        (ALL, (1.0, 1.0), ReasonCode.ALL_SOLVED),
        (ALL, (1.0, 0.9), None),
        (ALL, (1.0, None), ReasonCode.ALL_SOLVED),
        (NONE, (0.9, 0.0), ReasonCode.NONE_SOLVED),
        (NONE, (1.0, 0.0), None),
        (NARROW, (0.5, 0.6), ReasonCode.NARROW_REWARDS),
        (NARROW, (0.5, 0.75), None),
        (ALL | NONE | NARROW, (1.0, 1.0), ReasonCode.ALL_SOLVED),
    ],
)
def test_what_the_run_does_not_want_is_dropped_with_its_reason(
    filters: dict[str, Any], rewards: Sequence[float | None], code: ReasonCode | None
) -> None:
    run = story.launch(algorithm__filters=filters)
    [claim] = story.claim(run, 1)
    assert story.settle(claim, rewards) == (GroupState.FILTERED if code else GroupState.READY)
    group = ScoredGroup.objects.get(key=claim.group)
    assert group.reason_code == (code or "")
    submitted = story.submit(run, [story.scored("x", rewards)], actor="api:env")
    assert ScoredGroup.objects.get(key=submitted[0]).reason_code == (code or "")


def test_what_solves_a_problem_is_said_by_its_environment() -> None:
    environments = [{"name": "reverse_text", "solved_at": 0.5}]
    run = story.launch(algorithm__filters=ALL, environments=environments)
    [claim] = story.claim(run, 1)
    assert story.settle(claim, [0.5, 0.75]) == GroupState.FILTERED
    group = ScoredGroup.objects.get(key=claim.group)
    assert (group.scored_count, group.solved_count) == (2, 2)
    assert str(group.reason) == "every rollout solved the problem: a reward of 0.5 or more"
    [key] = story.submit(run, [story.scored("x", [0.5, 0.0], environment="elsewhere")], actor="api:env")
    assert ScoredGroup.objects.get(key=key).solved_count == 0


def test_others_are_played_in_the_place_of_what_was_dropped() -> None:
    run = story.launch(algorithm__filters=ALL, algorithm__max_async_level=0)
    first = story.claim(run)
    assert len(first) == 2
    story.settle(first[0], [1.0, 1.0])
    story.settle(first[1], [1.0, 0.0])
    assert len(story.claim(run)) == 1


def test_a_step_says_what_was_generated_beside_what_is_trained() -> None:
    run, epoch = story.train(algorithm__filters=ALL, algorithm__max_async_level=0)
    for rewards in ([1.0, 1.0], [0.0, 0.0], [1.0, 0.0]):
        [claim] = story.claim(run, 1)
        story.settle(claim, rewards)
    assert forming.fetch(run, epoch=epoch, step=0) is not None
    points = dict(MetricPoint.objects.filter(run=run, step=0).values_list("key", "value"))
    assert points["reward/mean"] == 0.25
    assert points["reward/generated_mean"] == 0.5
    shares = {key: value for key, value in points.items() if key.startswith("problems/")}
    assert shares == {
        "problems/no_signal_share": pytest.approx(2 / 3),
        "problems/all_solved_share": pytest.approx(1 / 3),
        "problems/none_solved_share": pytest.approx(1 / 3),
        "problems/filtered_share": pytest.approx(1 / 3),
    }


def test_what_was_generated_counts_for_one_step_only() -> None:
    run, epoch = story.train(algorithm__max_async_level=0)
    story.step(run, epoch, 0)
    [first, second] = story.claim(run)
    story.settle(first, [0.0, 0.0])
    story.settle(second, [0.5, 0.5])
    assert forming.fetch(run, epoch=epoch, step=1) is not None
    assert MetricPoint.objects.get(run=run, step=1, key="reward/generated_mean").value == 0.25
