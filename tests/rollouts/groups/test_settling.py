"""Those who settle at the same time share a transaction, and each gets what is its own."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from django.db import IntegrityError, OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from environments.types import Claim
from rollouts.errors import Invalid, LeaseLost
from rollouts.models import Lease, ScoredGroup
from rollouts.services.groups import leases, settling
from rollouts.services.groups.combining import database_is_away
from rollouts.states import GroupState
from tests.rollouts import story
from tests.workers.waiting import eventually

pytestmark = pytest.mark.django_db(transaction=True)
DEADLINE_S = 30


def settled_behind(first: Claim, *others: Callable[[], Any]) -> list[Any]:
    """What the others gave or raised, which settle while the first one is at it."""
    combiner = settling._together
    with ThreadPoolExecutor(len(others) + 1) as threads:
        with transaction.atomic():
            Lease.objects.select_for_update().get(token=first.token)
            busy = threads.submit(_apart, lambda: story.settle(first))
            eventually(lambda: combiner.free_lanes == 0, what="the first one settles")
            waiting = [threads.submit(_apart, each) for each in others]
            eventually(lambda: len(combiner.waiting) == len(others), what="the others wait")
        assert busy.result(DEADLINE_S) == GroupState.READY
        return [_outcome(each) for each in waiting]


def _apart(act: Callable[[], Any]) -> Any:
    try:
        return act()
    finally:
        connection.close()


def _outcome(future: Future[Any]) -> Any:
    return future.exception(DEADLINE_S) or future.result()


def transactions_of(claims: Sequence[Claim]) -> int:
    """How many stored the rollouts of these."""
    query = (
        "SELECT count(DISTINCT rollout.xmin::text), count(DISTINCT grp.id) FROM rollouts_rollout AS rollout"
        " JOIN rollouts_scoredgroup AS grp ON grp.id = rollout.group_id WHERE grp.key = ANY(%s)"
    )
    with connection.cursor() as cursor:
        cursor.execute(query, [[each.group for each in claims]])
        [(transactions, groups)] = cursor.fetchall()
    assert groups == len(claims)
    return int(transactions)


def test_groups_that_are_settled_at_the_same_time_share_a_transaction() -> None:
    first, *others = story.claim(story.launch(**{"batch__batch_size": 12}), 6)
    rewards = [[1.0, 0.0], [None, None], [1.0, 0.0], [0.25, 0.5], [1.0, None]]
    acts = [
        lambda each=each, given=given: story.settle(each, given) for each, given in zip(others, rewards, strict=True)
    ]
    states = [GroupState.READY, GroupState.FAILED, *[GroupState.READY] * 3]
    assert settled_behind(first, *acts) == states
    assert transactions_of(others) == 1
    by_key = {group.key: group for group in ScoredGroup.objects.all()}
    assert [by_key[each.group].state for each in others] == states
    assert [by_key[each.group].reward_mean for each in others] == [0.5, None, 0.5, 0.375, 1.0]
    assert [by_key[each.group].problem_key for each in others] == [f"p/{each.problem_index}" for each in others]
    assert not Lease.objects.exists()


def test_groups_of_two_runs_are_settled_by_the_config_of_their_own() -> None:
    whole, filtered = story.launch(), story.launch(**{"algorithm__filters__all_solved": True})
    [first, one], [other] = story.claim(whole, 2), story.claim(filtered, 1)
    acts = [lambda each=each: story.settle(each, [1.0, 1.0]) for each in (one, other)]
    assert settled_behind(first, *acts)[1] == GroupState.FILTERED
    assert transactions_of([one, other]) == 1


def test_one_that_cannot_be_settled_takes_nobody_with_it() -> None:
    run = story.launch(**{"batch__batch_size": 12})
    first, short, lost, good, twice = story.claim(run, 5)
    leases.release([lost.token])
    found = settled_behind(
        first,
        lambda: story.settle(short, [1.0]),
        lambda: story.settle(lost),
        lambda: story.settle(good),
        lambda: story.settle(twice),
        lambda: story.settle(twice),
    )
    assert isinstance(found[0], Invalid)
    assert isinstance(found[1], LeaseLost)
    assert found[2] == GroupState.READY
    assert sorted(type(each).__name__ for each in found[3:]) == ["GroupState", "LeaseLost"]
    assert transactions_of([good, twice]) == 2
    assert Lease.objects.count() == 2, "who sent too little may send it again, and what was given back is free"


def test_a_database_that_is_away_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = story.claim(story.launch(**{"batch__batch_size": 12}), 4)
    asked: list[int] = []
    store = settling.insert_rollouts

    def away(incoming: Sequence[Any]) -> None:
        asked.append(len(incoming))
        if len(asked) == 2:
            raise OperationalError("the connection is lost")
        store(incoming)

    monkeypatch.setattr(settling, "insert_rollouts", away)
    found = settled_behind(first, *[lambda each=each: story.settle(each) for each in others])
    assert [type(each) for each in found] == [OperationalError] * 3
    assert asked == [1, 3]
    assert [story.settle(each) for each in others] == [GroupState.READY] * 3


def test_a_transaction_asks_as_much_for_many_groups_as_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = story.claim(story.launch(**{"batch__batch_size": 20}), 8)
    asked: dict[int, int] = {}
    settle = settling._together._work

    def counted(played: Sequence[Any]) -> Sequence[GroupState]:
        with CaptureQueriesContext(connection) as queries:
            states = settle(played)
        asked[len(played)] = len(queries)
        return states

    monkeypatch.setattr(settling._together, "_work", counted)
    assert settled_behind(first, *[lambda each=each: story.settle(each) for each in others]) == [GroupState.READY] * 7
    assert asked.keys() == {1, 7}
    assert asked[1] == asked[7]


@pytest.mark.parametrize(("state", "is_away"), [(None, True), ("57P01", True), ("08006", True), ("40P01", False)])
def test_only_a_database_that_cannot_be_asked_is_away(state: str | None, is_away: bool) -> None:
    error = OperationalError("the connection is lost")
    error.__cause__ = psycopg.OperationalError() if state is None else psycopg.errors.lookup(state)()
    assert database_is_away(error) is is_away
    assert not database_is_away(IntegrityError("twice"))
