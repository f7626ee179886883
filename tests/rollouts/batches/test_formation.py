"""Which groups become a batch: sums that add up, whose turn it is, and nobody left behind."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.formation import Candidate, Chosen, Demand, MixtureShare, Stuck, Waiting, choose


def queue(*groups: tuple[int, int], tokens: int = 10) -> list[Candidate]:
    """Ready groups, oldest first, as (environment, rollouts)."""
    return [Candidate(at, environment, rollouts, tokens) for at, (environment, rollouts) in enumerate(groups)]


def shares(candidates: list[Candidate]) -> dict[int, MixtureShare]:
    return {each.environment_id: MixtureShare(f"e{each.environment_id}") for each in candidates}


def chosen_sizes(
    candidates: list[Candidate], demand: Demand, mixture: dict[int, MixtureShare] | None = None
) -> list[int]:
    result = choose(candidates, demand, mixture or shares(candidates), 0.0)
    assert isinstance(result, Chosen), result
    by_id = {each.group_id: each.rollouts for each in candidates}
    return [by_id[group_id] for group_id in result.group_ids]


def subset_sums(sizes: list[int]) -> set[int]:
    sums = {0}
    for size in sizes:
        sums |= {each + size for each in sums}
    return sums


def test_the_oldest_groups_go_first() -> None:
    candidates = queue(*[(1, 4)] * 10)
    result = choose(candidates, Demand(rollouts=12, exact=True), shares(candidates), 0.0)
    assert isinstance(result, Chosen)
    assert result.group_ids == [0, 1, 2]


def test_sizes_are_combined_where_a_simple_scan_would_be_stuck() -> None:
    assert chosen_sizes(queue((1, 3), (1, 3), (1, 3), (1, 4), (1, 4), (1, 2)), Demand(rollouts=8, exact=True)) == [
        3,
        3,
        2,
    ]


def test_what_cannot_make_the_size_is_told_with_a_way_out() -> None:
    result = choose(queue((1, 8), (1, 8)), Demand(rollouts=12, exact=True), {1: MixtureShare("gsm")}, 0.0)
    assert isinstance(result, Stuck)
    assert "groups of 8 rollouts cannot make exactly 12" in result.reason
    assert "batch size" in result.reason


def test_a_batch_that_need_not_be_exact_is_as_small_as_it_can_be() -> None:
    assert chosen_sizes(queue((1, 8), (1, 8), (1, 8)), Demand(rollouts=12)) == [8, 8]
    assert chosen_sizes(queue((1, 5), (1, 5), (1, 2), (1, 2)), Demand(rollouts=9)) == [5, 2, 2]


def test_too_little_waits_and_says_how_much_there_is() -> None:
    assert choose(queue((1, 4)), Demand(rollouts=8), {1: MixtureShare("e")}, 0.0) == Waiting(
        "4 of 8 rollouts are ready"
    )
    assert choose([], Demand(rollouts=8), {}, 0.0) == Waiting("0 of 8 rollouts are ready")


@pytest.mark.parametrize(
    ("weights", "rollouts", "groups"),
    [((3.0, 1.0), 8, (4, 4)), ((3.0, 1.0), 64, (8, 8)), ((1.0, 5.0), 64, (8, 8)), ((1.0, 1.0), 64, (4, 16))],
)
def test_weights_steer_the_mixture_over_many_batches(
    weights: tuple[float, float], rollouts: int, groups: tuple[int, int]
) -> None:
    """However many groups a batch has, and in whatever order they came."""
    mixture = {key: MixtureShare(str(key), weight) for key, weight in enumerate(weights)}
    clock, batched, waiting, number = 0.0, Counter[int](), list[Candidate](), 0
    for _ in range(100):
        for key, size in enumerate(groups):  # of each there is enough for a batch
            while sum(each.rollouts for each in waiting if each.environment_id == key) < rollouts:
                waiting.append(Candidate(number := number + 1, key, size, 10))
        result = choose(waiting, Demand(rollouts=rollouts, exact=True), mixture, clock)
        assert isinstance(result, Chosen)
        clock = result.clock
        mixture = {key: MixtureShare(old.name, old.weight, result.virtual_times[key]) for key, old in mixture.items()}
        taken = set(result.group_ids)
        for each in waiting:
            batched[each.environment_id] += each.rollouts * (each.group_id in taken)
        waiting = [each for each in waiting if each.group_id not in taken]
    assert batched[0] / batched.total() == pytest.approx(weights[0] / sum(weights), abs=0.01)


def test_an_environment_that_was_away_neither_waits_nor_catches_up() -> None:
    mixture = {1: MixtureShare("busy", 1.0, 1000.0), 2: MixtureShare("back", 1.0, 3.0)}
    candidates = queue(*[(1 + at % 2, 4) for at in range(40)])
    result = choose(candidates, Demand(rollouts=40), mixture, 998.0)
    assert isinstance(result, Chosen)
    taken = Counter(each.environment_id for each in candidates if each.group_id in set(result.group_ids))
    assert taken == {1: 5, 2: 5}


def test_weights_never_block_an_environment_that_is_alone() -> None:
    assert (
        len(
            chosen_sizes(
                queue(*[(2, 4)] * 4), Demand(rollouts=16), {1: MixtureShare("gone", 9.0), 2: MixtureShare("here", 0.1)}
            )
        )
        == 4
    )


def test_minimum_allocations_are_met_first() -> None:
    candidates = queue(*[(1, 4)] * 20, *[(2, 4)] * 4)
    mixture = {1: MixtureShare("heavy", 100.0), 2: MixtureShare("light", 1.0)}
    result = choose(candidates, Demand(rollouts=16, exact=True, minimums={2: 8}), mixture, 0.0)
    assert isinstance(result, Chosen)
    assert result.group_ids == [0, 1, 20, 21]


def test_a_minimum_that_is_not_there_is_waited_for_by_name() -> None:
    mixture = {1: MixtureShare("one"), 2: MixtureShare("two")}
    result = choose(queue(*[(1, 4)] * 20), Demand(rollouts=16, exact=True, minimums={2: 8}), mixture, 0.0)
    assert result == Waiting("environment two has 0 of the 8 rollouts allocated to it")


def test_a_token_budget_is_never_passed_but_by_a_single_group() -> None:
    candidates = queue(*[(1, 2)] * 10, tokens=30)
    result = choose(candidates, Demand(tokens=100), shares(candidates), 0.0)
    assert isinstance(result, Chosen)
    assert result.group_ids == [0, 1, 2]
    lone = choose(candidates, Demand(tokens=10), shares(candidates), 0.0)
    assert isinstance(lone, Chosen)
    assert lone.group_ids == [0]
    assert choose(candidates[:2], Demand(tokens=100), shares(candidates), 0.0) == Waiting("60 of 100 tokens are ready")


groups = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9)), min_size=1, max_size=12)


@given(groups, st.integers(1, 30), st.booleans())
def test_a_batch_is_formed_exactly_when_some_groups_add_up(
    sizes: list[tuple[int, int]], wanted: int, exact: bool
) -> None:
    candidates = queue(*sizes)
    result = choose(candidates, Demand(rollouts=wanted, exact=exact), shares(candidates), 0.0)
    sums = subset_sums([size for _, size in sizes])
    possible = {total for total in sums if total == wanted or (not exact and total >= wanted)}
    assert isinstance(result, Chosen) == bool(possible)
    if isinstance(result, Chosen):
        assert len(set(result.group_ids)) == len(result.group_ids)
        assert result.group_ids == sorted(result.group_ids)
        assert sum(sizes[at][1] for at in result.group_ids) == min(possible)


@given(groups, st.integers(1, 30), st.integers(0, 10))
def test_minimums_hold_in_every_batch(sizes: list[tuple[int, int]], wanted: int, minimum: int) -> None:
    candidates = queue(*sizes)
    minimums = {sizes[0][0]: min(minimum, wanted)}
    result = choose(candidates, Demand(rollouts=wanted, exact=True, minimums=minimums), shares(candidates), 0.0)
    if isinstance(result, Chosen):
        for environment, least in minimums.items():
            assert sum(sizes[at][1] for at in result.group_ids if sizes[at][0] == environment) >= least
