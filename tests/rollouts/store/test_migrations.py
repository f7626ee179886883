"""Migrations describe the models, and go one step back."""

from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.django_db
def test_no_migration_is_missing() -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


@pytest.mark.slow
def test_the_newest_migrations_go_back_and_forth() -> None:
    applied = MigrationRecorder.Migration.objects.filter(app="rollouts").order_by("name").values_list("name", flat=True)
    names = list(applied)
    try:
        for name in reversed(names[:-1]):
            call_command("migrate", "rollouts", name, verbosity=0)
    finally:
        call_command("migrate", "rollouts", verbosity=0)
    assert list(applied) == names


def test_token_arrays_are_stored_out_of_line_and_uncompressed() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT attname, attstorage FROM pg_attribute WHERE attrelid = 'rollouts_grouptokens'::regclass"
            " AND attname IN ('token_ids', 'loss_mask', 'inference_logprobs')"
        )
        assert {
            name: storage if isinstance(storage, str) else storage.decode() for name, storage in cursor
        } == dict.fromkeys(("token_ids", "loss_mask", "inference_logprobs"), "e")


def test_the_plan_of_a_migration_is_printed() -> None:
    out = StringIO()
    call_command("migrate", "--plan", stdout=out)
    assert "No planned migration operations" in out.getvalue()
