"""One world for all cells of the matrix: every request takes back what it wrote."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction

from tests.access.asking import in_this_thread
from tests.access.people import World, make_world


@pytest.fixture(scope="module")
def world(django_db_setup: None, django_db_blocker: Any) -> Iterator[World]:
    """Two projects and everybody who may want something of them, until the module is over."""
    with django_db_blocker.unblock(), transaction.atomic(), in_this_thread():
        logging.disable(logging.WARNING)  # of every refusal
        yield make_world()
        logging.disable(logging.NOTSET)
        transaction.set_rollback(True)
