"""Policy versions: one is live, the evaluation of the first and strict runs hold the next one back."""

from datetime import timedelta

import pytest
from django.utils import timezone

from rollouts.errors import Invalid, StateConflict
from rollouts.models import Evaluation, Event, MetricPoint, PolicyVersion, Rollout, ScoredGroup
from rollouts.reasons import Reason, ReasonCode
from rollouts.services.batches import forming
from rollouts.services.groups import evaluations
from rollouts.services.runs import life, policies
from rollouts.states import EvaluationState, GroupState, PolicyVersionState, RunState
from tests import store
from tests.factories import words
from tests.rollouts import story
from trainers.wire import PolicyVersionIn

pytestmark = pytest.mark.django_db
concurrent = pytest.mark.django_db(transaction=True)


def states() -> dict[int, str]:
    return dict(PolicyVersion.objects.values_list("version", "state"))


def test_exactly_one_version_is_live() -> None:
    run, epoch = story.train()
    for version in (1, 2):
        story.announce(run, epoch, version)
        assert story.publish(run) == version
    assert states() == {0: "superseded", 1: "superseded", 2: "live"}
    assert story.fresh(run).live_version == 2


def test_the_newest_version_is_published_and_those_between_are_skipped() -> None:
    run, epoch = story.train()
    story.announce(run, epoch, 1)
    story.announce(run, epoch, 2)
    assert story.publish(run) == 2
    assert states() == {0: "superseded", 1: "superseded", 2: "live"}
    assert story.publish(run) is None
    older = PolicyVersion.objects.filter(version__lt=2)
    assert {version.reason for version in older} == {Reason(ReasonCode.VERSION_SUPERSEDED, version=2)}


def test_an_older_version_that_comes_late_is_not_published() -> None:
    run, epoch = story.train()
    story.announce(run, epoch, 2)
    story.publish(run)
    story.announce(run, epoch, 1)
    assert story.publish(run) is None


@concurrent
def test_of_two_publishers_one_wins() -> None:
    run, epoch = story.train()
    version = story.announce(run, epoch, 1)
    again = PolicyVersion.objects.get(pk=version.pk)
    results = story.together(lambda: policies.published(version), lambda: policies.published(again))
    assert sorted(type(result).__name__ for result in results) == ["PolicyVersion", "StateConflict"]
    assert story.fresh(run).live_version == 1


def test_nothing_is_published_in_a_run_that_is_over() -> None:
    run, epoch = story.train(evaluation={"problems": 1}, max_steps=1)
    story.announce(run, epoch, 1)
    version = PolicyVersion.objects.get(version=1)
    life.end(run, to=RunState.FAILED, reason=words("test"))
    with pytest.raises(StateConflict, match="nothing is published"):
        policies.published(version)
    assert set(Evaluation.objects.values_list("state", flat=True)) == {EvaluationState.EXPIRED}


def test_announcing_twice_is_announcing_once() -> None:
    run, epoch = story.train()
    story.announce(run, epoch, 1)
    story.publish(run)
    again = story.register(run)
    assert again.newest_version == 1, "so that no trainer has to"
    assert story.announce(run, again.epoch, 1).state == PolicyVersionState.LIVE
    assert Event.objects.filter(object_kind="policyversion", from_state="").count() == 2
    assert policies.register_initial(run, path="/other").path == "/models/tiny"


@pytest.mark.parametrize("version", [-1, 0, 4, 10**30])
def test_a_version_that_cannot_be_is_refused(version: int) -> None:
    run, epoch = story.train()
    with pytest.raises(Invalid, match="No such version"):
        story.announce(run, epoch, version)


def test_weights_outside_their_folder_are_refused() -> None:
    run, epoch = story.train()
    for path in ("/tmp/weights", str(run.directory), str(run.directory / "weights")):
        wanted = PolicyVersionIn(version=1, path=path, manifest_sha256="a" * 64, size_bytes=1)
        with pytest.raises(Invalid):
            policies.announce(run, epoch=epoch, version_in=wanted)


def test_the_evaluation_of_the_start_holds_publishing_until_it_is_done() -> None:
    run, epoch = story.train(evaluation={"problems": 2, "rollouts_per_problem": 1})
    story.announce(run, epoch, 1)
    assert story.publish(run) is None
    first, second = story.claim_evaluated(run)
    story.settle(first, [1.0])
    evaluations.conclude(run)
    assert story.publish(run) is None
    story.settle(second, [None])
    evaluations.conclude(run)
    evaluation = Evaluation.objects.get()
    assert (evaluation.state, evaluation.measured) == (EvaluationState.DONE, "0")
    assert MetricPoint.objects.get(key="eval/reverse_text/reward").value == 1.0, "a failed rollout has no reward"
    assert story.publish(run) == 1


def test_a_later_evaluation_lets_publishing_go_on_and_says_which_versions_it_measured() -> None:
    run, epoch = story.train(max_steps=9, evaluation={"problems": 3, "rollouts_per_problem": 1, "every": 2})
    for claim in story.claim_evaluated(run):
        story.settle(claim, [0.0])
    evaluations.conclude(run)
    story.announce(run, epoch, 2)
    assert story.publish(run) == 2
    first, second, third = story.claim_evaluated(run)
    story.settle(first, [0.5])
    story.announce(run, epoch, 3)
    assert story.publish(run) == 3, "it goes on while the evaluation is played"
    story.settle(second, [0.5], version=3)
    story.announce(run, epoch, 4)
    assert story.publish(run) == 4
    story.settle(third, [None], version=4)
    evaluations.conclude(run)
    evaluation = Evaluation.objects.get(version=2)
    assert (evaluation.state, evaluation.measured) == (EvaluationState.DONE, "2 to 3"), "a failed one measured nothing"
    assert Evaluation.objects.get(version=4).measured == "4", "of one that is being played nothing is known yet"


def test_an_evaluation_that_was_due_on_a_version_that_was_skipped_is_opened_on_the_next() -> None:
    run, epoch = story.train(max_steps=9, evaluation={"problems": 1, "every": 4})
    with store.beyond_rights():
        Evaluation.objects.update(state="done", finished_at=timezone.now())
    for version in (3, 5, 6):
        story.announce(run, epoch, version)
        story.publish(run)
    assert list(Evaluation.objects.order_by("version").values_list("version", flat=True)) == [0, 5]


def test_an_evaluation_past_its_deadline_lets_publishing_go_on() -> None:
    run, epoch = story.train(evaluation={"problems": 3, "rollouts_per_problem": 1})
    story.announce(run, epoch, 1)
    played, late, _ = story.claim_evaluated(run)
    story.settle(played, [0.5])
    with store.beyond_rights():
        Evaluation.objects.update(deadline_at=timezone.now() - timedelta(seconds=1))
    evaluations.conclude(run)
    evaluation = Evaluation.objects.get()
    assert (evaluation.state, evaluation.reward_mean) == (EvaluationState.EXPIRED, 0.5)
    assert evaluation.state_reason == "only 1 of 3 problems were played in time"
    groups = ScoredGroup.objects.filter(evaluation=evaluation)
    assert set(groups.values_list("state", flat=True)) == {GroupState.EVALUATED, GroupState.SURPLUS}
    with pytest.raises(Exception, match="lease"):
        story.settle(late, [1.0])
    assert Rollout.objects.count() == 1
    assert story.publish(run) == 1


def test_an_evaluation_that_ends_with_its_run_keeps_what_it_found() -> None:
    run = story.launch(evaluation={"problems": 3, "rollouts_per_problem": 1})
    played, *_ = story.claim_evaluated(run)
    story.settle(played, [0.5])
    life.request_stop(run, actor="user:ada")
    life.end(run, to=RunState.STOPPED)
    evaluation = Evaluation.objects.get()
    assert (evaluation.state, evaluation.reward_mean, evaluation.measured) == (EvaluationState.EXPIRED, 0.5, "0")
    assert evaluation.figures["rollouts"] == 1
    assert evaluation.state_reason == "the run was stopped"
    assert MetricPoint.objects.get(key="eval/reverse_text/reward").value == 0.5


def test_an_evaluation_of_which_every_group_failed_ends_without_a_reward() -> None:
    run = story.launch(evaluation={"problems": 1, "rollouts_per_problem": 2})
    [claim] = story.claim(run, 1)
    assert story.settle(claim, [None, None]) == GroupState.FAILED
    evaluations.conclude(run)
    evaluation = Evaluation.objects.get()
    assert (evaluation.state, evaluation.reward_mean) == (EvaluationState.DONE, None)
    assert not MetricPoint.objects.exists()


@concurrent
def test_closing_an_evaluation_while_its_groups_settle_and_are_claimed_cannot_deadlock() -> None:
    for _ in range(4):
        run = story.launch(evaluation={"problems": 6, "rollouts_per_problem": 1})
        claims = story.claim_evaluated(run, 8)
        story.expire(run)
        with store.beyond_rights():
            Evaluation.objects.filter(run=run).update(deadline_at=timezone.now() - timedelta(seconds=1))
        results = story.together(
            lambda run=run: evaluations.conclude(run),
            lambda run=run: evaluations.conclude(run),
            lambda run=run: story.claim(run, 6, holder="other"),
            *[lambda claim=claim: story.settle(claim, [1.0]) for claim in claims],
        )
        assert {type(each).__name__ for each in results} <= {"NoneType", "list", "GroupState", "LeaseLost"}
        evaluation = Evaluation.objects.get(run=run)
        groups = ScoredGroup.objects.filter(evaluation=evaluation)
        assert not groups.filter(state=GroupState.PLAYING).exists()
        settled = Rollout.objects.filter(group__evaluation=evaluation).count()
        assert groups.filter(state=GroupState.EVALUATED).count() == settled


def test_evaluations_are_opened_for_the_first_the_last_and_every_nth_version() -> None:
    run, epoch = story.train(max_steps=5, evaluation={"problems": 1, "every": 2})
    for version in range(1, 6):
        with store.beyond_rights():
            Evaluation.objects.update(state="done", finished_at=timezone.now())
        story.announce(run, epoch, version)
        story.publish(run)
    assert list(Evaluation.objects.order_by("version").values_list("version", flat=True)) == [0, 2, 4, 5]


def test_a_strict_run_publishes_only_when_its_groups_are_generated() -> None:
    run, epoch = story.train(algorithm__max_async_level=1, algorithm__strict_async_level=True, max_steps=4)
    first, *others = story.claim(run, 3)
    for claim in others:
        story.settle(claim)
    delivery = forming.fetch(run, epoch=epoch, step=0)
    assert delivery is not None
    story.ack(run, epoch, 0, delivery.sha256)
    story.announce(run, epoch, 1)
    assert story.publish(run) is None, "one group plays and one was not claimed"
    [last] = story.claim(run)
    story.settle(last)
    assert story.publish(run) is None, "one group plays"
    story.settle(first)
    assert story.publish(run) == 1
    assert set(ScoredGroup.objects.values_list("min_policy_version", flat=True)) == {0}


def test_a_strict_run_passes_no_version_over_that_was_written_while_it_generated() -> None:
    run, epoch = story.train(algorithm__max_async_level=2, algorithm__strict_async_level=True, max_steps=9)
    *others, last = story.claim(run)
    for claim in others:
        story.settle(claim)
    for step in range(2):
        delivery = forming.fetch(run, epoch=epoch, step=step)
        assert delivery is not None
        story.ack(run, epoch, step, delivery.sha256)
        story.announce(run, epoch, step + 1)
        assert story.publish(run) is None, "one group plays"
    story.settle(last)
    assert story.publish(run) == 1, "of version 2 the next batches would lag by one step alone"


def test_only_old_superseded_files_may_be_removed() -> None:
    run, epoch = story.train(max_steps=8, trainer__keep_weights=3)
    for version in range(1, 7):
        story.announce(run, epoch, version)
        story.publish(run)
    prunable = policies.list_prunable(run)
    assert [row.version for row in prunable] == [2, 1]
    policies.forget_files(prunable)
    assert policies.list_prunable(run) == []
    assert PolicyVersion.objects.get(version=0).path == "/models/tiny"


def test_an_environment_that_measures_no_policy_is_not_evaluated_beside_others() -> None:
    judge = {"name": "judge"}  # compares replies of one policy with each other
    policies_too = [{"name": "judge", "endpoint": "j"}]
    run = story.launch(
        evaluation={"problems": 1}, environments=[{"name": "reverse_text"}, judge], policies=policies_too
    )
    assert run.environments.count() == 2
    assert [each.environment.name for each in Evaluation.objects.filter(run=run)] == ["reverse_text"]
