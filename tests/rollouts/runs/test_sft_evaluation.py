"""A supervised run with an evaluation plays it: on every version that is due, and nothing else."""

from typing import Any

import pytest

from rollouts.models import Evaluation, PolicyVersion, Run, ScoredGroup
from rollouts.services.groups import evaluations, leases
from rollouts.services.runs import life, policies
from rollouts.states import EvaluationState, GroupState, PolicyVersionState
from tests.factories import make_project
from tests.rollouts import story
from trainers.config import resolve

pytestmark = pytest.mark.django_db


def train(**overrides: Any) -> tuple[Run, int]:
    """A supervised run of six steps whose first version is live, and its trainer's epoch."""
    values = {"max_steps": 6, "optimizer.warmup_steps": 0, "evaluation": {"problems": 2, "every": 2}} | overrides
    resolved = resolve("reverse-text-sft", overrides=values)
    run = life.start(life.create(project=make_project(), user=None, resolved=resolved, actor="user:ada"))
    if run.parsed.is_played:
        policies.published(policies.register_initial(run, path="/models/tiny"))
    return story.fresh(run), story.register(run).epoch


def play(run: Run) -> int:
    claims = story.claim(run)
    for claim in claims:
        assert story.settle(claim, [0.5]) == GroupState.EVALUATED
    evaluations.conclude(run)
    return len(claims)


def test_its_problems_are_claimed_and_no_other() -> None:
    run, _ = train()
    assert play(run) == 2
    answer = leases.claim(run, holder="driver", limit=5, lease_s=30)
    assert (answer.claims, answer.reason) == ([], "")
    assert set(ScoredGroup.objects.values_list("purpose", "state")) == {("eval", "evaluated")}
    assert Evaluation.objects.get().state == EvaluationState.DONE


def test_every_version_that_is_due_is_evaluated_however_late() -> None:
    run, epoch = train()
    for version in (2, 4, 6):  # training does not wait for evaluations
        story.announce(run, epoch, version)
    assert story.publish(run) is None, "version 0 is still being played"
    played = [0]
    play(run)
    while (version := story.publish(run)) is not None:
        played.append(version)
        play(story.fresh(run))
    assert played == [0, 2, 4, 6]
    assert list(Evaluation.objects.order_by("version").values_list("version", "reward_mean")) == [
        (version, 0.5) for version in played
    ]
    assert PolicyVersion.objects.get(run=run, version=6).state == PolicyVersionState.LIVE


def test_without_an_evaluation_nothing_can_be_claimed() -> None:
    run, _ = train(evaluation=None)
    assert leases.claim(run, holder="driver", limit=5, lease_s=30).reason == "over"
