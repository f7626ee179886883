"""The environment that pleases a judge: what a judge's word is worth, and what happens where it has none."""

import asyncio
from typing import Any

import pytest

from environments import others, registry
from environments.errors import EndpointUnavailable, UnreadableVerdict
from environments.kit import check
from environments.types import FinishedRollout, Message, Problem, Split
from tests.environments.judging.judges import RuleJudge, better, says, scoring, sorts


def finished(problem: Problem, text: str) -> FinishedRollout:
    messages = [*problem.messages, Message("assistant", text)]
    return FinishedRollout(token_ids=[], loss_mask=[], inference_logprobs=[], messages=messages)


def score(judge: RuleJudge, texts: list[str], **args: Any) -> tuple[list[Any], list[FinishedRollout]]:
    environment = registry.load("judge", args)
    problem = environment.problem(Split.TRAIN, 0)
    rollouts = [finished(problem, text) for text in texts]

    async def act() -> list[Any]:
        with others.using(judge):
            return list(await environment.score_group(problem, rollouts))

    return asyncio.run(act()), rollouts


def test_a_reply_is_paid_the_share_of_its_comparisons_that_it_won() -> None:
    scores, rollouts = score(RuleJudge(better(len)), ["a", "bb", "ccc"])
    assert scores == [0.0, 0.5, 1.0]
    assert [rollout.metrics["judge_disagreed"] for rollout in rollouts] == [0.0, 0.0, 0.0]


def test_a_judge_that_prefers_whoever_is_shown_first_says_nothing() -> None:
    scores, rollouts = score(RuleJudge(lambda seen: says("A")), ["a", "bb", "ccc"])
    assert scores == [0.5, 0.5, 0.5]
    assert {rollout.metrics["judge_disagreed"] for rollout in rollouts} == {1.0}
    assert {rollout.metrics["judge_first"] for rollout in rollouts} == {1.0}


def test_by_criteria_the_weighed_mean_is_paid_and_each_part_kept() -> None:
    criteria = [{"name": "brief", "text": "It is short."}, {"name": "kind", "text": "It is kind.", "weight": 3}]
    scores, [rollout] = score(RuleJudge(scoring(brief=10, kind=2)), ["hello"], mode="rubric", criteria=criteria)
    assert scores == [pytest.approx(0.4)]
    assert (rollout.metrics["judge/brief"], rollout.metrics["judge/kind"]) == (1.0, 0.2)


@pytest.mark.parametrize(
    ("said", "error"),
    [(EndpointUnavailable("away"), EndpointUnavailable), ("I like both.", UnreadableVerdict)],
)
def test_a_judge_that_fails_is_no_zero_by_accident(said: str | Exception, error: type[Exception]) -> None:
    scores, _ = score(RuleJudge(lambda seen: said), ["a", "b"])
    assert [type(each) for each in scores] == [error, error]
    scores, rollouts = score(RuleJudge(lambda seen: said), ["a", "b"], fallback=0.3)
    assert scores == [0.3, 0.3]
    assert {rollout.metrics["judge_failed"] for rollout in rollouts} == {1.0}


def test_without_anybody_who_answers_it_says_whom_to_name() -> None:
    environment = registry.load("judge")
    problem = environment.problem(Split.TRAIN, 0)
    [first, _] = asyncio.run(environment.score_group(problem, [finished(problem, text) for text in "ab"]))
    assert "[[policies]]" in str(first)


def test_under_a_judge_that_knows_what_is_right_it_keeps_every_promise_of_the_kit() -> None:
    with others.using(RuleJudge(sorts)):
        report = check(registry.load("judge", {"against": "answer"}), problems=10)
    assert report.holds, str(report)
