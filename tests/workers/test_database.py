"""Whoever waits for something else than the database keeps no connection to it."""

import pytest
from django.db import connections, transaction

from rollouts.models import Replica, Run
from rollouts.reasons import Reason, ReasonCode
from rollouts.states import ReplicaState
from tests.factories import make_replica, make_run
from workers.database import at_once, give_back
from workers.fleet import lifecycle
from workers.launchers.base import Observation


@pytest.mark.django_db(transaction=True)
def test_a_pass_that_waits_for_servers_keeps_no_connection_from_others() -> None:
    own = connections["default"]
    assert Run.objects.count() == 0
    assert own.connection is not None
    assert at_once(lambda number: (number, own.connection), [1, 2]) == [(1, None), (2, None)]
    assert Run.objects.count() == 0, "the next query takes one again"


@pytest.mark.django_db(transaction=True)
def test_a_transaction_keeps_its_connection() -> None:
    with transaction.atomic():
        assert Run.objects.count() == 0
        give_back()
        assert Run.objects.count() == 0


@pytest.mark.django_db(transaction=True)
def test_nobody_keeps_one_while_a_server_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    replica, own = make_replica(make_run()), connections["default"]
    kept: list[object] = []

    class Slow:
        def stop(self, handle: str, deadline_s: float) -> Observation:
            kept.append(own.connection)
            return Observation(alive=False, exit_code=1)

    monkeypatch.setattr(lifecycle, "launcher_of", lambda _: Slow())
    lifecycle.eject(replica, reason=Reason(ReasonCode.RUN_ENDING, state="failed"))
    assert kept == [None]
    assert Replica.objects.get().state == ReplicaState.LOST
