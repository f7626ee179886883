"""Migrations describe the models, and go one step back."""

from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.db.models.functions import Now

from rollouts.models import Address, Attempt, RunEnvironment
from rollouts.services.runs import projects
from rollouts.states import AttemptState, RunState
from tests.factories import make_run, make_user
from tests.rollouts.doors.atropos.api import make_external_run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.django_db
def test_no_migration_is_missing() -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


@pytest.mark.slow
def test_the_newest_migrations_go_back_and_forth() -> None:
    applied = MigrationRecorder.Migration.objects.filter(app="rollouts").order_by("name").values_list("name", flat=True)
    names = list(applied)
    try:
        call_command("migrate", "rollouts", names[0], verbosity=0)  # by way of each
    finally:
        call_command("migrate", "rollouts", verbosity=0)
    assert list(applied) == names


@pytest.mark.slow
def test_addresses_from_before_belong_to_whoever_launched_the_run_and_reset_by_get_only_where_it_was_in_use() -> None:
    olga = make_user("olga")
    admin = projects.ensure_admin()
    idle, over = make_external_run(user=olga), make_external_run(user=olga, state=RunState.STOPPED)
    was_reset, ours = make_external_run(), make_run(user=olga)
    supervised = make_run(preset="reverse-text-sft")
    for run in (was_reset, over, ours):
        Attempt.objects.create(
            **dict.fromkeys(("batch_size", "max_token_len", "num_steps"), 4),
            **{"run": run, "number": 1, "save_checkpoint_interval": 0, "starting_step": 0},
            **{"state": AttemptState.CLOSED, "closed_at": Now()},
        )
    keys = dict(Address.objects.values_list("run_id", "key"))
    try:
        call_command("migrate", "rollouts", "0012", verbosity=0)
    finally:
        call_command("migrate", "rollouts", verbosity=0)
    found = {row.run_id: (row.owner, row.resets_on_get) for row in Address.objects.select_related("owner")}
    assert found == {
        idle.pk: (olga, False),
        over.pk: (olga, False),
        was_reset.pk: (admin, True),
        ours.pk: (olga, False),
    }
    assert dict(Address.objects.values_list("run_id", "key")) == keys
    assert not Address.objects.filter(run=supervised).exists()


@pytest.mark.slow
def test_turns_of_before_took_the_time_that_their_weight_says() -> None:
    run = make_run()
    RunEnvironment.objects.filter(run=run).update(cursor=6, passed=3, weight=4.0)
    try:
        call_command("migrate", "rollouts", "0028", verbosity=0)
    finally:
        call_command("migrate", "rollouts", verbosity=0)
    assert RunEnvironment.objects.get(run=run).turn_time == 2.25


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
