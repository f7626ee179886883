"""Difficulty pools: which problems come again, and where they move as they are solved."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.types import Claim
from rollouts.models import KnownProblem, Run, ScoredGroup
from rollouts.pools import Pool, pool_of_turn, wanted
from rollouts.services.groups import leases, problems
from rollouts.states import GroupState
from tests.rollouts import story
from trainers.config import ConfigError, resolve
from trainers.run_config import PoolsConfig

SOLVED, MIXED, UNSOLVED = [1.0, 1.0], [1.0, 0.0], [0.0, 0.0]


@st.composite
def shares(draw: st.DrawFn) -> PoolsConfig:
    cuts = sorted(draw(st.lists(st.integers(1, 99), min_size=3, max_size=3)))
    new, easy, hard = cuts[0] / 100, (cuts[1] - cuts[0]) / 100, (cuts[2] - cuts[1]) / 100
    return PoolsConfig(new_share=new, easy_share=easy, hard_share=hard)


@given(shares(), st.integers(0, 10**9), st.integers(1, 500))
def test_every_pool_has_its_share_of_any_turns_in_a_row(config: PoolsConfig, turn: int, count: int) -> None:
    counts = wanted(turn, count, config)
    normal = 1 - config.new_share - config.easy_share - config.hard_share
    expected = {
        Pool.NEW: config.new_share,
        Pool.EASY: config.easy_share,
        Pool.HARD: config.hard_share,
        Pool.NORMAL: normal,
    }
    assert sum(counts.values()) == count
    for pool, share in expected.items():
        assert abs(counts[pool] - share * count) <= 5


@given(shares(), st.lists(st.integers(1, 20), max_size=8))
def test_turns_are_the_same_however_they_are_asked_for(config: PoolsConfig, sizes: list[int]) -> None:
    ends = [sum(sizes[:at]) for at in range(len(sizes) + 1)]
    parts = [wanted(first, last - first, config) for first, last in pairwise(ends)]
    assert sum(parts, Counter()) == Counter(pool_of_turn(turn, config) for turn in range(ends[-1]))


@pytest.mark.parametrize(
    ("pools", "fault"),
    [
        ({"hard_to": 0.9, "easy_from": 0.5}, "would be normal"),
        ({"new_share": 0.5, "hard_share": 0.4, "easy_share": 0.2}, "1.1 together"),
    ],
)
def test_pools_that_make_no_sense_are_refused(pools: dict[str, float], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        resolve("reverse-text-rl", overrides={"environments.0.pools": pools})


def launch(count: int | None, **pools: float | str) -> Run:
    """A run on so many problems; no turn waits for a problem to rest unless said otherwise."""
    ref = {"name": "reverse_text", "problems": count, "pools": {"rest": 0, "memory": 0.0, **pools}}
    ahead = {"algorithm__max_async_level": 20, "algorithm__max_off_policy_steps": 20}
    return story.launch(environments=[ref], max_steps=100, **ahead)


def indexes(claims: list[Claim]) -> list[int]:
    return sorted(claim.problem_index for claim in claims)


def play(run: Run, outcomes: dict[int, list[float | None]], count: int) -> list[int]:
    """Claim and settle so many, by what becomes of each problem; return which they were."""
    claims = story.claim(run, count)
    for claim in claims:
        story.settle(claim, outcomes.get(claim.problem_index, MIXED))
    return indexes(claims)


def pools_of(run: Run) -> dict[int, str]:
    return dict(KnownProblem.objects.filter(environment__run=run).values_list("problem_index", "pool"))


@pytest.mark.django_db
def test_without_pools_a_bounded_set_is_played_in_order_and_again() -> None:
    run = story.launch(environments=[{"name": "reverse_text", "problems": 3}], algorithm__max_async_level=3)
    assert [claim.problem_index for claim in story.claim(run, 5)] == [0, 1, 2, 0, 1]


@pytest.mark.django_db
def test_problems_are_new_until_they_are_scored_and_then_where_their_solve_rate_is() -> None:
    run = launch(8)
    claims = story.claim(run, 4)
    assert indexes(claims) == [0, 1, 2, 3]
    assert set(pools_of(run).values()) == {Pool.NEW}
    for claim, rewards in zip(claims, (SOLVED, MIXED, UNSOLVED, [None, None]), strict=True):
        story.settle(claim, rewards)
    assert pools_of(run) == {0: Pool.EASY, 1: Pool.NORMAL, 2: Pool.HARD, 3: Pool.NEW}
    rates = KnownProblem.objects.order_by("problem_index").values_list("solve_rate", "groups")
    assert list(rates) == [(1.0, 1), (0.5, 1), (0.0, 1), (None, 0)]


@pytest.mark.django_db
def test_by_reward_a_problem_that_earns_something_is_normal_though_nobody_solves_it() -> None:
    run = launch(5, by="reward")
    outcomes = dict(enumerate(([1.0, 1.5], [0.25, 0.5], UNSOLVED, [-3.0, -1.0], [0.75, None])))
    play(run, outcomes, 5)
    assert pools_of(run) == {0: Pool.EASY, 1: Pool.NORMAL, 2: Pool.HARD, 3: Pool.HARD, 4: Pool.NORMAL}
    rates = KnownProblem.objects.order_by("problem_index").values_list("solve_rate", flat=True)
    assert list(rates) == [1.0, 0.375, 0.0, 0.0, 0.75]


@pytest.mark.django_db
def test_a_problem_moves_as_its_running_solve_rate_does() -> None:
    run = launch(1, memory=0.5)
    for rewards, rate, pool in (
        (UNSOLVED, 0.0, Pool.HARD),
        (SOLVED, 0.5, Pool.NORMAL),
        (SOLVED, 0.75, Pool.NORMAL),
        (SOLVED, 0.875, Pool.NORMAL),
        (SOLVED, 0.9375, Pool.EASY),
        (UNSOLVED, 0.46875, Pool.NORMAL),
    ):
        play(run, {0: rewards}, 1)
        problem = KnownProblem.objects.get()
        assert (problem.solve_rate, problem.pool) == (rate, pool)


@pytest.mark.django_db
def test_each_pool_gives_its_share_and_the_longest_waiting_first() -> None:
    run = launch(40, new_share=0.2, hard_share=0.2, easy_share=0.2)
    outcomes = dict(enumerate((SOLVED, MIXED, UNSOLVED, MIXED) * 5))
    play(run, outcomes, 20)
    environment = run.environments.get()
    asked = wanted(environment.cursor, 10, PoolsConfig(new_share=0.2, hard_share=0.2, easy_share=0.2))
    before = pools_of(run)
    chosen = [claim.problem_index for claim in story.claim(run, 10)]
    assert Counter(before.get(index, Pool.NEW) for index in chosen) == asked
    for pool in (Pool.EASY, Pool.NORMAL, Pool.HARD):
        own = sorted(index for index, of in before.items() if of == pool)
        assert sorted(index for index in chosen if before.get(index) == pool) == own[: asked[pool]]


@pytest.mark.django_db
def test_what_a_pool_lacks_another_gives() -> None:
    run = launch(6, new_share=0.1, hard_share=0.9)
    assert play(run, dict.fromkeys(range(6), SOLVED), 4) == [0, 1, 2, 3]
    assert play(run, dict.fromkeys(range(6), SOLVED), 2) == [4, 5]
    assert set(pools_of(run).values()) == {Pool.EASY}
    assert play(run, {}, 3) == [0, 1, 2]


@pytest.mark.django_db
def test_problems_that_always_fail_have_no_more_turns_than_their_number_once_all_were_played() -> None:
    run = launch(12, new_share=0.5, hard_share=0.0)
    failing: dict[int, list[float | None]] = {index: [None, None] for index in range(3)}
    assert play(run, failing, 12) == list(range(12))
    again = Counter(index for _ in range(8) for index in play(run, failing, 3))
    assert [again[index] for index in failing] == [2, 2, 2], "a quarter of the problems, a quarter of the turns"


@pytest.mark.django_db
def test_a_problem_rests_before_it_comes_again_unless_nothing_else_is_left() -> None:
    run = launch(5, new_share=0.01, hard_share=0.0, rest=4)
    assert play(run, {}, 2) == [0, 1]
    assert play(run, {}, 1) == [2]
    assert play(run, {}, 1) == [3]
    assert play(run, {}, 1) == [0]
    assert sorted([*play(run, {}, 1), *play(run, {}, 1), *play(run, {}, 1)]) == [1, 2, 3]
    assert play(run, {}, 5) == [0, 1, 2, 3, 4]


@pytest.mark.django_db
def test_without_a_bound_there_are_always_new_problems() -> None:
    run = launch(None, new_share=1.0, hard_share=0.0)
    seen = [index for _ in range(5) for index in play(run, {}, 4)]
    assert seen == list(range(20))


@pytest.mark.django_db
def test_the_problems_of_an_environment_are_counted_where_the_run_comes_back_to_them() -> None:
    run = launch(100)
    problems.note_count(run, run.parsed.environments[0], 8)
    assert run.environments.get().problems == 8
    problems.note_count(run, run.parsed.environments[0], 1000)
    assert run.environments.get().problems == 100
    other = story.launch()
    problems.note_count(other, other.parsed.environments[0], 8)
    assert other.environments.get().problems is None


@pytest.mark.django_db
def test_evaluation_says_nothing_of_training_problems() -> None:
    ref = {"name": "reverse_text", "problems": 4, "pools": {"rest": 0}}
    run = story.launch(environments=[ref], evaluation={"problems": 1})
    [evaluation, *_] = story.claim(run)
    assert evaluation.split == "eval"
    story.settle(evaluation, [1.0])
    assert set(pools_of(run).values()) == {Pool.NEW}


@pytest.mark.django_db(transaction=True)
def test_claims_at_the_same_time_hand_out_different_problems_and_share_the_turns() -> None:
    run = launch(64, new_share=0.5, hard_share=0.0, rest=16)
    play(run, {}, 8)
    answers = story.together(
        *(lambda holder=f"w{at}": leases.claim(run, holder=holder, limit=4, lease_s=30).claims for at in range(4))
    )
    chosen = [claim.problem_index for claims in answers for claim in claims]
    assert len(chosen) == len(set(chosen)) == 16
    turns = KnownProblem.objects.filter(problem_index__in=chosen).values_list("turn", flat=True)
    assert sorted(turns) == list(range(8, 24))
    assert run.environments.get().cursor == 24


@pytest.mark.django_db(transaction=True)
def test_a_problem_settled_twice_at_the_same_time_counts_both_groups() -> None:
    run = launch(1)
    claims = [story.claim(run, 1)[0] for _ in range(2)]
    assert indexes(claims) == [0, 0]
    states = story.together(*(lambda each=each: story.settle(each, MIXED) for each in claims))
    assert states == [GroupState.READY] * 2
    assert KnownProblem.objects.get().groups == 2
    assert ScoredGroup.objects.filter(state=GroupState.READY).count() == 2
