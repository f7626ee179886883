"""Models and migrations say the same. A test, because the comparison asks a database, and `make lint` has none."""

import pytest
from django.core.management import call_command


@pytest.mark.django_db
def test_no_migration_is_missing() -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)
