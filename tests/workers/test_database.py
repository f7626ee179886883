"""Whoever waits for something else than the database keeps no connection to it."""

import pytest
from django.db import connections, transaction

from rollouts.models import Run
from workers.database import at_once, give_back


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
