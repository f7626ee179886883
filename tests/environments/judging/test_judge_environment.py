"""The environment that pleases a judge: what a judge's word is worth, and what happens where it has none."""

import asyncio
from typing import Any

import pytest

from environments import others, registry
from environments.errors import AsksOver, EndpointUnavailable, UnreadableVerdict
from environments.isolated.frames import MAX_ASKED
from environments.kit import check
from environments.types import ChatAnswer, FinishedRollout, Message, Problem, Split
from tests.environments.judging.judges import RuleJudge, Shown, better, says, scoring, sorts
from tests.environments.test_isolated_play import started


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


def fails_of(word: str, fault: Exception) -> RuleJudge:
    """A judge that prefers long replies, and fails wherever one with this word is shown."""

    def rule(seen: Shown) -> str | Exception:
        return fault if any(word in reply for reply in seen.replies) else better(len)(seen)

    return RuleJudge(rule)


def test_how_much_of_a_tally_the_judge_gave_no_word_of_is_told_with_the_reward() -> None:
    scores, rollouts = score(fails_of("bb", EndpointUnavailable("away")), ["a", "bb", "ccc", "dddd"], fallback=0.3)
    assert scores == [0.0, 0.3, 0.5, 1.0]
    assert [rollout.metrics["judge_failed"] for rollout in rollouts] == [pytest.approx(1 / 3), 1.0, *[1 / 3] * 2]


def test_a_tally_that_ended_because_nobody_asked_any_more_is_no_reward() -> None:
    scores, _ = score(fails_of("bb", AsksOver("asked too often")), ["a", "bb", "ccc"], fallback=0.3)
    assert [type(each) for each in scores] == [AsksOver] * 3


def test_a_group_that_is_compared_in_a_process_of_its_own_asks_for_more_than_may_wait_at_a_time() -> None:
    class Slow(RuleJudge):
        """Answers once as many wait as may."""

        may_answer = asyncio.Event()

        async def reply(self, *asked: Any, **given: Any) -> ChatAnswer:
            answer = await super().reply(*asked, **given)
            if len(self.asked) >= MAX_ASKED:
                self.may_answer.set()
            await self.may_answer.wait()
            return answer

    async def act() -> list[float | Exception]:
        isolated = await started("judge")
        try:
            await isolated.load({})
            problem = await asyncio.to_thread(isolated.problem, Split.TRAIN, 0)
            rollouts = [finished(problem, "a" * count) for count in range(1, 13)]
            with others.using(Slow(better(len))):
                return list(await isolated.score_group(problem, rollouts))
        finally:
            await isolated.aclose()

    scores = asyncio.run(asyncio.wait_for(act(), 60))
    assert scores == [pytest.approx(won / 11) for won in range(12)]


def test_without_anybody_who_answers_it_says_whom_to_name() -> None:
    environment = registry.load("judge")
    problem = environment.problem(Split.TRAIN, 0)
    [first, _] = asyncio.run(environment.score_group(problem, [finished(problem, text) for text in "ab"]))
    assert "[[policies]]" in str(first)


def test_under_a_judge_that_knows_what_is_right_it_keeps_every_promise_of_the_kit() -> None:
    with others.using(RuleJudge(sorts)):
        report = check(registry.load("judge", {"against": "answer"}), problems=10)
    assert report.holds, str(report)
