"""Which version a group's requests go to, before and after its first one."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from workers.fleet.replica_pool import GroupPolicy, ReplicaPool


@pytest.mark.parametrize(("serves", "told"), [(7, 7), (2, 3), (None, 3)])
def test_a_group_that_asked_nobody_yet_goes_by_the_replica_that_it_would_ask(serves: int | None, told: int) -> None:
    """Its prompt may be known, and it may wait for long before it is sent."""
    pool: Any = SimpleNamespace(pick=lambda: SimpleNamespace(version=serves))
    assert GroupPolicy(cast("ReplicaPool", pool), oldest_version=3).version() == told


def test_without_a_replica_it_goes_by_what_was_live_when_it_was_claimed() -> None:
    pool: Any = SimpleNamespace(pick=lambda: None)
    assert GroupPolicy(cast("ReplicaPool", pool), oldest_version=3).version() == 3
