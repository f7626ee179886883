"""Cheaper cleaning up after tests that commit."""

from collections.abc import Iterator
from unittest.mock import patch

import pytest
from django.db import connection, transaction
from django.test import TransactionTestCase

from tests import store

_KEPT = {"django_migrations", "django_content_type", "auth_permission"}


@pytest.fixture(scope="package", autouse=True)
def quick_cleaning() -> Iterator[None]:
    """Django truncates every table and makes its permissions anew: a quarter of a second for each test that commits."""
    with patch.object(TransactionTestCase, "_fixture_teardown", _delete_every_row):
        yield


def _delete_every_row(_case: TransactionTestCase) -> None:
    # Foreign keys are checked at the commit, so the order does not matter.
    tables = sorted(set(connection.introspection.django_table_names(only_existing=True)) - _KEPT)
    with transaction.atomic(), store.beyond_rights(), connection.cursor() as cursor:
        cursor.execute(";".join(f'DELETE FROM "{table}"' for table in tables))
