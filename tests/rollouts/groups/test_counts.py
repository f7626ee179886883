"""Environments that are counted late: what was handed out before anybody knew is given up, and nothing comes twice."""

import pytest

from environments.types import Split
from rollouts.errors import LeaseLost
from rollouts.models import Evaluation, Run, RunEnvironment, ScoredGroup
from rollouts.services.groups import counts, evaluations
from rollouts.states import EvaluationState, GroupState
from tests.rollouts import story

pytestmark = pytest.mark.django_db


def note(run: Run, split: Split, count: int) -> RunEnvironment:
    counts.note(run, run.parsed.environments[0], split, count)
    return run.environments.get()


def test_an_evaluation_of_more_problems_than_there_are_is_cut_to_them_and_closes() -> None:
    run = story.launch(evaluation={"problems": 9, "rollouts_per_problem": 1})
    claims = {claim.problem_index: claim for claim in story.claim_evaluated(run, 12)}
    assert len(claims) == 8
    story.settle(claims.pop(0))
    assert note(run, Split.EVAL, 3).problem_count == 3
    found = Evaluation.objects.get(run=run)
    assert (found.problems, found.cursor) == (3, 3)
    for index in range(3, 8):
        with pytest.raises(LeaseLost):
            story.settle(claims.pop(index))
        group = ScoredGroup.objects.get(run=run, evaluation=found, problem_index=index)
        assert (group.state, group.state_reason) == (GroupState.SURPLUS, "the environment has only 3 problems")
    assert not [claim for claim in story.claim(run) if claim.split is Split.EVAL]
    evaluations.conclude(run)
    assert Evaluation.objects.get(run=run).state == EvaluationState.PLAYING, "two of its problems are not played"
    for claim in claims.values():
        story.settle(claim)
    evaluations.conclude(run)
    found.refresh_from_db()
    assert found.figures is not None
    assert (found.state, found.figures["problems"]) == (EvaluationState.DONE, 3)


def test_an_evaluation_that_has_not_come_so_far_is_handed_out_to_its_end() -> None:
    run = story.launch(evaluation={"problems": 9, "rollouts_per_problem": 1})
    assert len(story.claim_evaluated(run, 4)) == 2
    note(run, Split.EVAL, 3)
    assert [claim.problem_index for claim in story.claim(run) if claim.split is Split.EVAL] == [2]


def test_the_next_evaluation_has_no_more_problems_than_there_are() -> None:
    run, epoch = story.train(evaluation={"problems": 9, "every": 1}, max_steps=9)
    note(run, Split.EVAL, 3)
    story.step(run, epoch, 0)
    story.publish(run)
    assert set(Evaluation.objects.filter(run=run).values_list("problems", flat=True)) == {3}


def test_problems_beyond_the_last_do_not_come_again_from_a_pool() -> None:
    pools = {"rest": 0, "memory": 0.0, "new_share": 0.5}
    run = story.launch(
        environments=[{"name": "reverse_text", "pools": pools}],
        algorithm__max_async_level=20,
        algorithm__max_off_policy_steps=20,
        max_steps=100,
    )
    first = story.claim(run, 6)
    assert [claim.problem_index for claim in first] == [0, 1, 2, 3, 4, 5]
    assert note(run, Split.TRAIN, 4).problems == 4
    assert {story.settle(claim) for claim in first} == {GroupState.READY}, "also of what was another problem"
    for _ in range(4):
        again = story.claim(run, 4)
        assert sorted(claim.problem_index for claim in again) == [0, 1, 2, 3]
        for claim in again:
            story.settle(claim)


@pytest.mark.parametrize(("bound", "known"), [(None, None), (9, 4), (3, 3)])
def test_a_bound_that_a_person_set_is_lowered_to_what_there_is(bound: int | None, known: int | None) -> None:
    run = story.launch(environments=[{"name": "reverse_text", "problems": bound}])
    assert note(run, Split.TRAIN, 4).problems == known


def test_what_is_known_stays_and_what_the_run_does_not_play_says_nothing() -> None:
    run = story.launch(evaluation={"problems": 9})
    assert note(run, Split.TRAIN, 4).problem_count is None
    assert note(run, Split.EVAL, 0).problem_count is None
    evaluations.note_count(run, "reverse_text", 7)
    assert note(run, Split.EVAL, 3).problem_count == 7
    assert note(story.launch(), Split.EVAL, 3).problem_count is None
