"""Groups from outside: stored once, all or none, and only while they can be trained on."""

from collections.abc import Callable

import pytest

from environments.types import PlayedGroup
from rollouts.errors import Conflict, Invalid, RunOver, StateConflict
from rollouts.models import Event, GroupTokens, Rollout, RunEnvironment, ScoredGroup
from rollouts.services.groups import intake
from rollouts.services.runs import life
from rollouts.states import GroupState, RunState
from tests.factories import words
from tests.rollouts import story

pytestmark = pytest.mark.django_db
concurrent = pytest.mark.django_db(transaction=True)


def stored() -> tuple[int, int, int, int]:
    return (
        ScoredGroup.objects.count(),
        Rollout.objects.count(),
        GroupTokens.objects.count(),
        Event.objects.filter(object_kind="scoredgroup").count(),
    )


def test_a_submitted_group_is_ready_and_attributable() -> None:
    run = story.launch()
    [key] = story.submit(run, [story.scored("mine", environment="outside")], actor="api:collector")
    group = ScoredGroup.objects.get(key=key)
    assert (group.state, group.environment.name, group.problem_key) == (GroupState.READY, "outside", "cat")
    assert (group.problem_index, group.reward_mean, group.reward_std) == (None, 0.5, 0.5)
    assert set(group.rollouts.values_list("worker", flat=True)) == {"api:collector"}
    assert stored() == (1, 2, 1, 1)


def test_groups_without_a_key_get_one_each() -> None:
    run = story.launch()
    keys = story.submit(run, [story.scored(), story.scored()], actor="api:x")
    assert len(set(keys)) == 2
    assert stored()[0] == 2


def test_a_key_is_stored_once() -> None:
    run = story.launch()
    for _ in range(2):
        assert story.submit(run, [story.scored("a"), story.scored("b")], actor="api:x") == ["a", "b"]
    assert story.submit(run, [story.scored("b"), story.scored("c")], actor="api:x") == ["b", "c"]
    assert stored() == (3, 6, 3, 3)


@concurrent
def test_a_key_is_stored_once_also_when_many_submit_it_at_the_same_time() -> None:
    run = story.launch()
    batch = [story.scored(key, environment=name) for key, name in (("a", "x"), ("b", "y"), ("c", "x"))]
    results = story.together(
        *[lambda: story.submit(run, batch, actor="api:x")] * 4,
        *[lambda: story.submit(run, batch[::-1], actor="api:x")] * 4,
    )
    assert [sorted(result) for result in results] == [["a", "b", "c"]] * 8
    assert stored() == (3, 6, 3, 3)
    assert RunEnvironment.objects.filter(run=run).count() == 3


def test_a_key_used_for_another_group_is_refused() -> None:
    run = story.launch()
    story.submit(run, [story.scored("a")], actor="api:x")
    with pytest.raises(Conflict, match="used for another group"):
        story.submit(run, [story.scored("b"), story.scored("a", problem_key="dog")], actor="api:x")
    assert stored()[0] == 1
    with pytest.raises(Invalid):
        story.submit(run, [story.scored("c"), story.scored("c")], actor="api:x")


def other_scores(group: PlayedGroup) -> None:
    for rollout in group.rollouts:
        rollout.reward = 1 - rollout.reward


def other_mask(group: PlayedGroup) -> None:
    group.rollouts[1].loss_mask = [1] * len(group.rollouts[1].loss_mask)


def other_logprobs(group: PlayedGroup) -> None:
    group.rollouts[0].inference_logprobs[-1] -= 1.0


@pytest.mark.parametrize("change", [other_scores, other_mask, other_logprobs], ids=lambda change: change.__name__)
def test_a_key_used_again_for_the_same_tokens_with_something_else_to_learn_is_refused(
    change: Callable[[PlayedGroup], None],
) -> None:
    run = story.launch()
    story.submit(run, [story.scored("a")], actor="api:x")
    changed = story.scored("a")
    change(changed)
    with pytest.raises(Conflict, match="used for another group"):
        story.submit(run, [changed], actor="api:x")
    assert stored() == (1, 2, 1, 1)


@concurrent
def test_outside_of_a_transaction_a_repeated_key_is_looked_at_and_nothing_is_stored_by_halves() -> None:
    """There a submission first goes as if nothing were repeated."""
    run = story.launch()
    first = story.scored("one", environment="outside")
    assert story.submit(run, [first], actor="api:x") == ["one"]
    assert story.submit(run, [first, story.scored("two", environment="outside")], actor="api:x") == ["one", "two"]
    before = stored()
    assert before == (2, 4, 2, 2)
    with pytest.raises(Conflict):
        story.submit(run, [story.scored("three"), story.scored("one", rewards=(0.0, 0.25))], actor="api:x")
    assert stored() == before


def test_the_same_key_may_be_used_in_two_runs() -> None:
    for run in (story.launch(), story.launch()):
        story.submit(run, [story.scored("a")], actor="api:x")
    assert stored()[0] == 2


def test_one_bad_group_keeps_all_others_out_and_is_named() -> None:
    run = story.launch()
    bad = story.scored("bad")
    bad.rollouts[1].loss_mask.pop()
    with pytest.raises(Invalid) as caught:
        story.submit(run, [story.scored("good"), bad], actor="api:x")
    assert caught.value.fields == {"groups.1.rollouts.1.loss_mask": "has 3 entries for 4 tokens"}
    assert stored() == (0, 0, 0, 0)


def test_a_policy_version_that_does_not_exist_yet_is_refused() -> None:
    run, epoch = story.train()
    story.step(run, epoch, 0)
    before = stored()
    with pytest.raises(Invalid) as caught:
        story.submit(run, [story.scored("a", version=3)], actor="api:x")
    assert caught.value.fields == {"last_policy_version": "must be at most 2"}
    assert stored() == before


def test_a_group_nobody_versioned_counts_as_played_on_the_live_version() -> None:
    run, epoch = story.train()
    story.step(run, epoch, 0)
    story.submit(run, [story.scored("a", version=None)], actor="api:x")
    group = ScoredGroup.objects.get(key="a")
    assert (group.min_policy_version, group.max_policy_version) == (1, 1)


def test_a_group_spans_the_versions_of_its_rollouts() -> None:
    run, epoch = story.train()
    for number in range(2):
        story.step(run, epoch, number)
    group = story.scored("a")
    group.rollouts[0].dispatch_policy_version = 0
    group.rollouts[0].first_policy_version = 1
    group.rollouts[0].last_policy_version = 2
    group.rollouts[1].dispatch_policy_version = None
    group.rollouts[1].first_policy_version = 1
    group.rollouts[1].last_policy_version = None
    story.submit(run, [group], actor="api:x")
    row = ScoredGroup.objects.get(key="a")
    assert (row.min_policy_version, row.max_policy_version) == (0, 2)


def test_a_run_that_has_not_started_asks_to_come_back() -> None:
    run = story.create()
    with pytest.raises(StateConflict, match="Submit again"):
        story.submit(run, [story.scored("a")], actor="api:x")


@pytest.mark.parametrize("state", [RunState.FINISHING, RunState.STOPPING, RunState.FAILED])
def test_a_run_that_trains_no_more_takes_no_groups(state: RunState) -> None:
    run = story.launch()
    if state == RunState.FAILED:
        life.end(run, to=state)
    else:
        type(run).objects.filter(pk=run.pk).update(state=state)
    with pytest.raises(RunOver, match=f"is {state}"):
        story.submit(run, [story.scored("a")], actor="api:x")
    assert stored()[0] == 0


@concurrent
def test_no_group_is_left_behind_by_a_submit_while_the_run_ends() -> None:
    for _ in range(5):
        run = story.launch()
        submitted, _ = story.together(
            lambda run=run: story.submit(run, [story.scored("a")], actor="api:x"),
            lambda run=run: life.end(story.fresh(run), to=RunState.FAILED, reason=words("test")),
        )
        states = list(ScoredGroup.objects.filter(run=run).values_list("state", flat=True))
        assert states == ([] if isinstance(submitted, RunOver) else [GroupState.SURPLUS])


def test_a_run_has_a_limited_number_of_environments() -> None:
    run = story.launch()
    named = [story.scored(environment=f"env-{number}") for number in range(intake.MAX_ENVIRONMENTS - 1)]
    story.submit(run, named, actor="api:x")
    with pytest.raises(Invalid, match="too many environments"):
        story.submit(run, [story.scored(environment="one-more")], actor="api:x")


def test_a_submit_of_many_groups_needs_few_queries_and_few_locks(django_assert_max_num_queries: object) -> None:
    run = story.launch()
    many = [story.scored(f"g{number}", [1.0]) for number in range(1000)]
    with django_assert_max_num_queries(45):  # type: ignore[operator]
        assert len(story.submit(run, many, actor="api:x")) == 1000
    assert stored()[0] == 1000
