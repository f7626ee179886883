"""Which groups a claim begins: of training as many as generation may run ahead, and the problems of open evaluations.

The caller has locked the run's environments and its open evaluations.
"""

from collections import Counter
from math import floor

import msgspec
from django.db import connection, models
from django.utils import timezone

from rollouts.models import Evaluation, Lease, Purpose, Run, RunEnvironment, RunKind, ScoredGroup
from rollouts.selectors.next_batch import measure_of
from rollouts.services.groups import problems
from rollouts.sql import load
from rollouts.states import GroupState


class Capacity(msgspec.Struct, frozen=True):
    state: str
    live_version: int
    capacity: int
    """Rollouts, or tokens, that may still be claimed for training; not above 0: none."""
    abundant: list[int]
    """Ids of the environments whose groups wait for longer than generation may run ahead."""
    is_evaluated: bool
    """Whether an open evaluation has problems that were not handed out."""


def capacity(run: Run) -> Capacity:
    """How far generation may still run ahead: at most ``steps_ahead`` batches beyond the live version."""
    measure, algorithm = measure_of(run), run.parsed.algorithm
    with connection.cursor() as cursor:
        cursor.execute(
            load("capacity"),
            {
                "run_id": run.pk,
                "steps_ahead": algorithm.steps_ahead,
                "max_off_policy_steps": algorithm.max_off_policy_steps,
                "batch": measure.batch,
                "names": list(measure.groups),
                "sizes": list(measure.groups.values()),
                "shares": [review.share if (review := run.parsed.review_of(name)) else 0.0 for name in measure.groups],
                "beyond": measure.beyond,
                "is_tokens": measure.is_tokens,
            },
        )
        row = cursor.fetchone()
    assert row is not None, "runs are never deleted"
    return Capacity(*row)


def begin(
    run: Run,
    environments: list[RunEnvironment],
    open_evaluations: list[Evaluation],
    now: Capacity,
    *,
    holder: str,
    room: int,
    left: dict[int, int],
    in_a_slot: int,
) -> list[ScoredGroup]:
    """The groups, not stored yet: at most as many as the holder has ``room``, and ``left`` for each environment.

    ``in_a_slot``: problems of an evaluation that take the room of one group. Moves the cursors of what it is given.
    """
    training: list[ScoredGroup] = []
    if run.kind == RunKind.RL and now.capacity > 0:
        kept = _kept_for_evaluation(run, open_evaluations, holder, room, left, in_a_slot)
        rest = {environment: count - kept[environment] for environment, count in left.items()}
        training = _for_training(run, environments, room - kept.total(), now, rest)
        left = {environment: count + kept[environment] for environment, count in rest.items()}
    return [*_of_evaluations(run, open_evaluations, room - len(training), left, in_a_slot), *training]


def _kept_for_evaluation(
    run: Run, open_evaluations: list[Evaluation], holder: str, room: int, left: dict[int, int], in_a_slot: int
) -> Counter[int]:
    """Slots of each environment, of those that are free, that training leaves to evaluation: as many as that lacks to
    half of the holder's; all, when half of the time for an evaluation is over."""
    kept = Counter[int]()
    if not open_evaluations or room <= 0:
        return kept
    of_purpose = {purpose: models.Count("pk", filter=models.Q(group__purpose=purpose)) for purpose in Purpose.values}
    held = Lease.objects.filter(run=run, holder=holder).aggregate(**of_purpose)
    evaluating = -(-held[Purpose.EVAL] // in_a_slot)
    lacks = min(room, -(-(room + evaluating + held[Purpose.TRAIN]) // 2) - evaluating)
    half_time = (each.created_at + (each.deadline_at - each.created_at) / 2 for each in open_evaluations)
    if min(half_time) < timezone.now():
        lacks = room
    for each in open_evaluations:
        free = left[each.environment_id] - kept[each.environment_id]
        wanted = -(-(each.problems - each.cursor) // in_a_slot)
        kept[each.environment_id] += max(0, min(lacks - kept.total(), free, wanted))
    return kept


def _of_evaluations(
    run: Run, open_evaluations: list[Evaluation], room: int, left: dict[int, int], in_a_slot: int
) -> list[ScoredGroup]:
    groups: list[ScoredGroup] = []
    for evaluation in open_evaluations:
        slots = min(room, left[evaluation.environment_id])
        count = min(slots * in_a_slot, evaluation.problems - evaluation.cursor)
        if count <= 0:
            continue
        room -= (taken := -(-count // in_a_slot))
        left[evaluation.environment_id] -= taken
        groups += [
            ScoredGroup(
                run=run,
                environment_id=evaluation.environment_id,
                purpose=Purpose.EVAL,
                evaluation=evaluation,
                problem_index=evaluation.cursor + offset,
                state=GroupState.PLAYING,
            )
            for offset in range(count)
        ]
        evaluation.cursor += count
        evaluation.save(update_fields=["cursor"])
    return groups


def _for_training(
    run: Run, environments: list[RunEnvironment], room: int, now: Capacity, left: dict[int, int]
) -> list[ScoredGroup]:
    """The next problems of each environment, environments in proportion to their weights by the rollouts that they
    have: at most `room` groups, up to the capacity.

    A turn takes an environment its group's rollouts / weight of virtual time, and it has the turn that would end first.
    Whose turn it is and who has no room left, or is abundant while others are not, passes: what it did not have is lost
    to it, or it would have all turns once it recovers.
    """
    sizes, turns, amount = measure_of(run).groups, list[RunEnvironment](), now.capacity
    environments = [environment for environment in environments if environment.name in sizes]
    lasts = {each: run.parsed.group_rollouts[each.name] / each.weight for each in environments}
    while amount > 0 and len(turns) < room and (with_room := [each for each in environments if left[each.pk] > 0]):
        playing = [each for each in with_room if each.pk not in now.abundant] or with_room
        environment = min(playing, key=lambda each: (each.turn_time + lasts[each], each.pk))
        environment.turn_time += lasts[environment]
        for other in environments:
            if other not in playing:
                missed = max(0, floor((environment.turn_time - other.turn_time) / lasts[other]))
                other.turn_time += missed * lasts[other]
                other.passed += 0 if left[other.pk] > 0 else missed
        left[environment.pk] -= 1
        turns.append(environment)
        amount -= sizes[environment.name]
    in_order = sorted(Counter(turns).items(), key=lambda turned: turned[0].pk)  # problems are locked in this order
    indexes = {each: iter(problems.pick(run, each, count)) for each, count in in_order}
    if turns:
        RunEnvironment.objects.bulk_update(environments, ["cursor", "unseen", "passed", "turn_time"])
    return [
        ScoredGroup(run=run, environment=environment, problem_index=index, state=GroupState.PLAYING)
        for environment in turns
        if (index := next(indexes[environment], None)) is not None
    ]
