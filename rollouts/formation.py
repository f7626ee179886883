"""Choose which ready groups become the next batch. Pure: no database, no clock, no chance.

    candidates (oldest few of each environment and size) ─► whose turn is it ─► sums that add up ─► the oldest groups

Groups are atoms, sizes may differ, and a batch is full by its rollouts, exactly (`Demand.exact`) or with as few over as
possible; or by its tokens, with none over. Whose turn it is follows start-time fair queueing (Goyal, Vin, Cheng 1996):
every environment has a virtual time, rollouts batched over weight; the one furthest behind is next, and one that was
away takes up at the mixture's clock, so that it neither waits nor catches up. Weights steer and never block: an
environment without ready groups is passed over.

Which amounts of each environment add up is a subset sum over bit sets: bit s of an integer says that s rollouts can be
taken. For a batch of B rollouts it costs a few shifts of B-bit integers per candidate.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf


@dataclass(frozen=True, slots=True)
class Candidate:
    """A ready group, as far as choosing needs to know it."""

    group_id: int
    environment_id: int
    rollouts: int
    tokens: int


@dataclass(frozen=True)
class Demand:
    """What a batch must hold: `rollouts`, or `tokens` when that is set."""

    rollouts: int = 0
    tokens: int | None = None
    exact: bool = False
    """Whether one rollout too many is as bad as one too few."""
    minimums: Mapping[int, int] = field(default_factory=dict)
    """Environment id -> rollouts that must be its own."""


@dataclass(frozen=True)
class MixtureShare:
    """An environment's part in the mixture."""

    name: str
    weight: float = 1.0
    virtual_time: float = 0.0


@dataclass(frozen=True)
class Chosen:
    """The groups of a batch, oldest first, and what the mixture remembers."""

    group_ids: list[int]
    virtual_times: dict[int, float]
    clock: float


@dataclass(frozen=True)
class Waiting:
    """There is not enough yet; more groups will do."""

    reason: str


@dataclass(frozen=True)
class Stuck:
    """There is enough, but it does not add up; more of the same will not do."""

    reason: str


def choose(
    candidates: Sequence[Candidate], demand: Demand, shares: Mapping[int, MixtureShare], clock: float
) -> Chosen | Waiting | Stuck:
    """The groups of the next batch. ``candidates`` are in the order of their ids; every environment has a share."""
    turns = _Turns(shares, clock)
    if demand.tokens is not None:
        return _by_tokens(candidates, demand.tokens, turns)
    have = sum(candidate.rollouts for candidate in candidates)
    queues: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        queues.setdefault(candidate.environment_id, []).append(candidate)
    for environment_id, minimum in demand.minimums.items():
        own = sum(candidate.rollouts for candidate in queues.get(environment_id, []))
        if own < minimum:
            name = shares[environment_id].name
            return Waiting(f"environment {name} has {own} of the {minimum} rollouts allocated to it")
    if have < demand.rollouts:
        return Waiting(f"{have} of {demand.rollouts} rollouts are ready")
    largest = max(candidate.rollouts for candidate in candidates)
    limit = demand.rollouts if demand.exact else demand.rollouts + largest - 1
    sums = {key: _sums(queue, limit, demand.minimums.get(key, 0)) for key, queue in queues.items()}
    total = _total(sums.values(), demand.rollouts, limit)
    if total is None:
        return Stuck(_why_stuck(candidates, demand))
    wanted = _wanted(queues, demand, turns)
    amounts = _apportion(sums, wanted, total)
    chosen = {key: _oldest(queue, amounts[key]) for key, queue in queues.items() if amounts[key]}
    group_ids = sorted(candidate.group_id for queue in chosen.values() for candidate in queue)
    turns = _Turns(shares, clock)
    while chosen:  # in the order of turns: a group of who is ahead would forgive the others what they are behind
        key = turns.next_of(chosen)
        turns.take(key, chosen[key].pop(0).rollouts)
        if not chosen[key]:
            del chosen[key]
    return Chosen(group_ids, turns.times, turns.clock)


class _Turns:
    """Virtual times of the environments and the mixture's clock."""

    def __init__(self, shares: Mapping[int, MixtureShare], clock: float) -> None:
        self._shares = shares
        self.times = {key: share.virtual_time for key, share in shares.items()}
        self.clock = clock

    def start(self, environment_id: int) -> float:
        """When the environment's next group would begin, in virtual time."""
        return max(self.clock, self.times[environment_id])

    def take(self, environment_id: int, rollouts: int) -> None:
        start = self.start(environment_id)
        self.clock = start
        self.times[environment_id] = start + rollouts / self._shares[environment_id].weight

    def next_of(self, queues: Mapping[int, Sequence[Candidate]]) -> int:
        """The environment whose turn it is; of several, the one whose group is the oldest."""
        return min(queues, key=lambda key: (self.start(key), queues[key][0].group_id))


def _by_tokens(candidates: Sequence[Candidate], budget: int, turns: _Turns) -> Chosen | Waiting:
    queues: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        queues.setdefault(candidate.environment_id, []).append(candidate)
    chosen: list[Candidate] = []
    left = budget
    while queues:
        key = turns.next_of(queues)
        candidate = queues[key][0]
        if chosen and candidate.tokens > left:
            break
        chosen.append(candidate)
        left -= candidate.tokens
        turns.take(key, candidate.rollouts)
        queues[key] = queues[key][1:]
        if not queues[key]:
            del queues[key]
        if left <= 0:
            break
    else:
        return Waiting(f"{budget - left} of {budget} tokens are ready")
    return Chosen(sorted(candidate.group_id for candidate in chosen), turns.times, turns.clock)


def _wanted(queues: Mapping[int, Sequence[Candidate]], demand: Demand, turns: _Turns) -> dict[int, int]:
    """Rollouts per environment if only turns counted, minimums first."""
    left = {key: list(queue) for key, queue in queues.items()}
    wanted = dict.fromkeys(queues, 0)
    have = 0

    def take(key: int) -> None:
        nonlocal have
        candidate = left[key].pop(0)
        wanted[key] += candidate.rollouts
        have += candidate.rollouts
        turns.take(key, candidate.rollouts)
        if not left[key]:
            del left[key]

    for key, minimum in demand.minimums.items():
        while key in left and wanted[key] < minimum:
            take(key)
    while left and have < demand.rollouts:
        take(turns.next_of(left))
    return wanted


def _sums(queue: Sequence[Candidate], limit: int, minimum: int) -> int:
    """Bit s: some of these groups have s rollouts together, minimum <= s <= limit."""
    reachable, mask = 1, (1 << (limit + 1)) - 1
    for candidate in queue:
        reachable |= (reachable << candidate.rollouts) & mask
    return reachable >> minimum << minimum


def _total(sums: Iterable[int], at_least: int, limit: int) -> int | None:
    """The smallest number of rollouts from ``at_least`` to ``limit`` that all environments together can make."""
    reachable = 1
    for each in sums:
        reachable = _add(reachable, each, limit)
    reachable >>= at_least
    return None if reachable == 0 else at_least + (reachable & -reachable).bit_length() - 1


def _add(left: int, right: int, limit: int) -> int:
    """Bit s + t for every bit s of one and t of the other, up to ``limit``."""
    if right.bit_count() > left.bit_count():
        left, right = right, left
    result, mask = 0, (1 << (limit + 1)) - 1
    while right:
        lowest = right & -right
        result |= (left << (lowest.bit_length() - 1)) & mask
        right ^= lowest
    return result


def _apportion(sums: Mapping[int, int], wanted: Mapping[int, int], total: int) -> dict[int, int]:
    """An amount for each environment that it can make, ``total`` together, each as near to what is wanted as can be."""
    keys = list(sums)
    rest = [1]  # rest[i]: what the environments after the first i can make together
    for key in reversed(keys):
        rest.append(_add(rest[-1], sums[key], total))
    rest.reverse()
    amounts: dict[int, int] = {}
    left = total
    for at, key in enumerate(keys):
        best, distance = -1, inf
        possible = sums[key]
        while possible:
            lowest = possible & -possible
            amount = lowest.bit_length() - 1
            possible ^= lowest
            if amount <= left and abs(amount - wanted[key]) < distance and rest[at + 1] >> (left - amount) & 1:
                best, distance = amount, abs(amount - wanted[key])
        amounts[key] = best
        left -= best
    return amounts


def _oldest(queue: Sequence[Candidate], amount: int) -> list[Candidate]:
    """Groups with ``amount`` rollouts together, each taken as early as the rest allows."""
    mask = (1 << (amount + 1)) - 1
    later = [1]  # later[i]: what the groups after the first i can make
    for candidate in reversed(queue):
        later.append(later[-1] | (later[-1] << candidate.rollouts) & mask)
    later.reverse()
    taken: list[Candidate] = []
    for at, candidate in enumerate(queue):
        if candidate.rollouts <= amount and later[at + 1] >> (amount - candidate.rollouts) & 1:
            taken.append(candidate)
            amount -= candidate.rollouts
    return taken


def _why_stuck(candidates: Sequence[Candidate], demand: Demand) -> str:
    sizes = sorted({candidate.rollouts for candidate in candidates})
    shown = ", ".join(map(str, sizes[:8])) + (", ..." if len(sizes) > 8 else "")
    fix = f"Ask for a batch size that groups of {shown} rollouts can make, or submit groups of another size."
    if demand.minimums:
        fix += " Minimum allocations narrow what can be combined."
    return f"groups of {shown} rollouts cannot make exactly {demand.rollouts}. {fix}"
