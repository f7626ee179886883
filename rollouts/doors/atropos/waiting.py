"""What waits for a batch, in the terms in which Atropos tells it to environments. Pure.

Atropos keeps groups that are smaller than their environment's group size in a buffer until some of them add up to one.
Here every group waits in the same queue, and which of them Atropos would still be buffering follows from their sizes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, isfinite

from rollouts.storable import MAX_GROUP_SIZE

Sizes = Counter[int]
"""Sequences in a group -> groups of that size."""
MIN_WEIGHT = 0.01


@dataclass(frozen=True, slots=True)
class Participant:
    """A registered environment, as far as the others' numbers depend on it."""

    environment_id: int
    group_size: int
    max_token_length: int
    weight: float
    min_batch_allocation: float | None
    """None: it asked for none, or is not heard of any more."""
    is_connected: bool


def buffered(sizes: Sizes, group_size: int) -> Sizes:
    """Groups that do not add up to a whole one: as many as possible were put together first."""
    if group_size > MAX_GROUP_SIZE:
        return Counter()
    left = Counter({size: count for size, count in sizes.items() if size < group_size and count > 0})
    while (parts := _parts(left, group_size)) is not None:
        times = min(left[size] // count for size, count in parts.items())
        left -= Counter({size: count * times for size, count in parts.items()})
    return left


def _parts(sizes: Sizes, total: int) -> Mapping[int, int] | None:
    """Groups that have ``total`` sequences together."""
    reached: dict[int, dict[int, int]] = {0: {}}
    for size in sorted(sizes, reverse=True):
        for already, parts in list(reached.items()):
            for count in range(1, min(sizes[size], (total - already) // size) + 1):
                reached.setdefault(already + size * count, {**parts, size: count})
        if total in reached:
            return reached[total]
    return None


def queued(waiting: Mapping[int, Sizes], participants: Iterable[Participant]) -> dict[int, Sizes]:
    """Per environment id, what Atropos would have in its queue and not in a buffer."""
    group_sizes = {each.environment_id: each.group_size for each in participants}
    return {
        key: sizes - buffered(sizes, group_sizes[key]) if key in group_sizes else sizes
        for key, sizes in waiting.items()
    }


def sequences(sizes: Sizes) -> int:
    return sum(size * count for size, count in sizes.items())


def environment_status(
    own: Participant, participants: list[Participant], queue: Mapping[int, Sizes], *, batch_size: int
) -> dict[str, float]:
    """The numbers of `/status-env`, all but the step. ``queue`` is what ``queued`` gave."""
    connected = [each for each in participants if each.is_connected]
    shares = [each for each in connected if each.min_batch_allocation is not None]
    largest = max((size for sizes in queue.values() for size in sizes), default=1)
    mine = queue.get(own.environment_id, Counter())
    group_size = max([own.group_size, *mine, 1])
    minimum: dict[int, int] = {}
    for each in shares:
        held = int(batch_size * (each.min_batch_allocation or 0.0))
        minimum[each.environment_id] = minimum.get(each.environment_id, 0) + held
    others = 0
    if largest > 1:
        for key, sizes in queue.items():
            if key != own.environment_id:
                packs = ceil(sequences(sizes) / largest)
                others += max(0, packs * largest - minimum.get(key, 0))
    return {
        "queue_size": (sequences(mine) + others) // group_size,
        "unallocated_fraction": 1.0 - min(1.0, sum(each.min_batch_allocation or 0.0 for each in shares)),
        "self_queue_size": sequences(mine) // group_size,
        "max_group_size": largest,
        "env_weight": _weight(own, connected),
    }


def _weight(own: Participant, connected: list[Participant]) -> float:
    """The environment's part in the tokens of all; never nothing, or it would starve."""
    total = sum(each.max_token_length * max(0.0, each.weight) for each in connected)
    share = own.max_token_length * own.weight / total if total else 0.0
    return max(MIN_WEIGHT, share) if isfinite(share) else MIN_WEIGHT
