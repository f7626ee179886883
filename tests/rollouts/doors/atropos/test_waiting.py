"""The numbers that environments steer by, held against the server that defined them, item by item."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollouts.doors.atropos.waiting import Participant, buffered, environment_status, queued, sequences


@pytest.mark.parametrize(
    ("sizes", "group_size", "left"),
    [
        ([], 8, []),
        ([8, 8], 8, []),
        ([3], 8, [3]),
        ([3, 5], 8, []),
        ([3, 3, 3], 8, [3, 3, 3]),
        ([4, 4, 4], 8, [4]),
        ([4, 3, 2, 3, 2], 5, [4]),
        ([5, 4, 4], 8, [5]),
        ([16, 3], 8, [3]),
        ([1] * 20, 8, [1] * 4),
        ([2, 2, 3, 3, 3], 12, [2, 2, 3, 3, 3]),
        ([1, 1], 5000, []),
        ([1], 0, []),
    ],
)
def test_small_groups_wait_until_they_add_up(sizes: list[int], group_size: int, left: list[int]) -> None:
    assert buffered(Counter(sizes), group_size) == Counter(left)


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), max_size=30), st.integers(1, 10))
def test_what_stays_behind_cannot_make_a_whole_group(sizes: list[int], group_size: int) -> None:
    left = buffered(Counter(sizes), group_size)
    assert left <= Counter(sizes)
    assert all(size < group_size for size in left)
    sums = {0}
    for size in left.elements():
        sums |= {total + size for total in sums}
    assert group_size not in sums
    small = sum(size for size in sizes if size < group_size)
    assert (small - sequences(left)) % group_size == 0


shares = st.none() | st.sampled_from([0.0, 0.25, 0.5, 1.7, -0.5])
environments = st.builds(
    Participant,
    environment_id=st.just(0),
    group_size=st.sampled_from([1, 2, 4, 8]),
    max_token_length=st.sampled_from([1, 100, 4096]),
    weight=st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0]),
    min_batch_allocation=shares,
    is_connected=st.booleans(),
)


@settings(deadline=None)
@given(
    st.lists(environments, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from([1, 2, 4, 8, 16])), max_size=25),
    st.sampled_from([8, 64]),
)
def test_an_environment_is_told_what_atropos_would_tell_it(
    registered: list[Participant], queue: list[tuple[int, int]], batch_size: int
) -> None:
    """Registered as 0, 1, ...; the queue holds (environment, sequences), and 4 and 5 are of nobody registered."""
    everybody = [Participant(at, *[getattr(each, name) for name in FIELDS]) for at, each in enumerate(registered)]
    sizes: dict[int, Counter[int]] = {}
    for environment_id, size in queue:
        sizes.setdefault(environment_id, Counter())[size] += 1
    for own in everybody:
        told = environment_status(own, everybody, sizes, batch_size=batch_size)
        assert told == pytest.approx(reference(own, everybody, queue, batch_size))


FIELDS = ("group_size", "max_token_length", "weight", "min_batch_allocation", "is_connected")


def reference(
    own: Participant, everybody: list[Participant], queue: list[tuple[int, int]], batch_size: int
) -> dict[str, float]:
    """As section 3 of the protocol words it, over items instead of counts."""
    connected = [each for each in everybody if each.is_connected]
    total = sum(each.max_token_length * max(0, each.weight) for each in connected)
    weight = max(0.01, own.max_token_length * own.weight / total) if total else 0.01
    allocated = sum(each.min_batch_allocation or 0 for each in connected)
    largest = max([1, *(size for _, size in queue)])
    mine = [size for key, size in queue if key == own.environment_id]
    group_size = max([own.group_size, *mine])
    held = {
        each.environment_id: int(batch_size * each.min_batch_allocation)
        for each in connected
        if each.min_batch_allocation is not None
    }
    others = 0
    for key in {key for key, _ in queue} - {own.environment_id}:
        packs = -(-sum(size for other, size in queue if other == key) // largest)
        others += max(0, packs * largest - held.get(key, 0)) if largest > 1 else 0
    return {
        "queue_size": (sum(mine) + others) // group_size,
        "unallocated_fraction": 1 - min(1, allocated),
        "self_queue_size": sum(mine) // group_size,
        "max_group_size": largest,
        "env_weight": weight,
    }


def test_groups_that_are_buffered_do_not_count_as_queued() -> None:
    own = Participant(1, 8, 100, 1.0, None, True)
    assert queued({1: Counter([8, 3, 3, 5]), 2: Counter([3])}, [own]) == {1: Counter([8, 3, 5]), 2: Counter([3])}


@pytest.mark.parametrize("weight", [0.0, -1.0, 1e30])
def test_an_environment_never_weighs_nothing(weight: float) -> None:
    own = Participant(1, 8, 2**31 - 1, weight, None, False)
    assert environment_status(own, [own], {}, batch_size=8)["env_weight"] == 0.01
