"""Migrations describe the models, go back, and bring along what was stored before them."""

from collections.abc import Callable
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder
from django.db.models.functions import Now

from rollouts.models import Address, Attempt, Event, Run, RunEnvironment, ScoredGroup
from rollouts.reasons import Reason, ReasonCode
from rollouts.services.runs import projects
from rollouts.states import AttemptState, RunState
from tests import store
from tests.factories import make_group, make_run, make_user, words
from tests.lanes import long_lane
from tests.rollouts.doors.atropos.api import make_external_run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.django_db
def test_no_migration_is_missing() -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


@pytest.mark.slow
@long_lane("tests/controlplane/test_schema.py goes forth with a row of before the 29th; that each goes back is below")
def test_all_migrations_go_back_and_forth() -> None:
    applied = MigrationRecorder.Migration.objects.filter(app="rollouts").order_by("name").values_list("name", flat=True)
    names = list(applied)
    try:
        call_command("migrate", "rollouts", names[0], verbosity=0)  # by way of each
    finally:
        call_command("migrate", "rollouts", verbosity=0)
    assert list(applied) == names


def test_every_migration_goes_back() -> None:
    migrations = MigrationExecutor(connection).loader.disk_migrations.values()
    ours = [each for each in migrations if each.app_label == "rollouts"]
    assert len(ours) > 50
    stuck = [f"{each.name}: {step}" for each in ours for step in each.operations if not step.reversible]
    assert not stuck, "\n".join(stuck)


@pytest.mark.slow
@long_lane("tests/controlplane/test_schema.py takes a row along from the 28th")
def test_what_was_stored_before_a_migration_is_read_as_ever() -> None:
    """One journey for all: Django draws the models anew at every step."""
    run = make_run()
    checks = [_addresses()]
    try:
        groups = [make_group(run) for _ in SENTENCES]
        call_command("migrate", "rollouts", "0008", verbosity=0)
        checks.append(_sentences(run, groups))
        call_command("migrate", "rollouts", "0028", verbosity=0)
        checks.append(_turns(run))
    finally:
        call_command("migrate", "rollouts", verbosity=0)
    for check in checks:
        check()


def _addresses() -> Callable[[], None]:
    """Those from before 0013 belong to whoever launched the run, and reset by GET only where that was in use."""
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
    runs = [idle, over, was_reset, ours, supervised]
    keys = dict(Address.objects.filter(run__in=runs).values_list("run_id", "key"))

    def check() -> None:
        rows = Address.objects.filter(run__in=runs).select_related("owner")
        assert {row.run_id: (row.owner, row.resets_on_get) for row in rows} == {
            idle.pk: (olga, False),
            over.pk: (olga, False),
            was_reset.pk: (admin, True),
            ours.pk: (olga, False),
        }
        assert {row.run_id: row.key for row in rows} == keys

    return check


def _turns(run: Run) -> Callable[[], None]:
    """Those from before 0029 took the time that their weight says."""
    with store.beyond_rights(), connection.cursor() as cursor:
        turns = "UPDATE rollouts_runenvironment SET cursor = 6, passed = 3, weight = 4.0 WHERE run_id = %s"
        cursor.execute(turns, [run.pk])

    def check() -> None:
        assert RunEnvironment.objects.get(run=run).turn_time == 2.25

    return check


SENTENCES = {
    "lag over 4 steps at step 9": Reason(ReasonCode.LAGGED, limit=4, step=9),
    "step 3": Reason(ReasonCode.STEP, step=3),
    "zero advantage: all rewards are equal": Reason(ReasonCode.ZERO_ADVANTAGE),
    "every rollout failed, the first with timeout: 'x' \\ {y}": Reason(
        ReasonCode.ALL_FAILED, error="timeout: 'x' \\ {y}"
    ),
    "something else at step 3": words("something else at step 3"),
    "": None,
}
"""What reasons were before 0009, and what is read of them."""


def _sentences(run: Run, groups: list[ScoredGroup]) -> Callable[[], None]:
    """Store them as they were then: what ledgers count gets its code, everything else keeps its words."""
    with store.beyond_rights(), connection.cursor() as cursor:
        for group, text in zip(groups, SENTENCES, strict=True):
            cursor.execute("UPDATE rollouts_scoredgroup SET state_reason = %s WHERE id = %s", [text, group.pk])
            cursor.execute(
                "INSERT INTO rollouts_event (run_id, object_kind, object_id, from_state, to_state, reason, actor)"
                " VALUES (%s, 'scoredgroup', %s, '', 'ready', %s, '')",
                [run.pk, group.pk, text],
            )
        cursor.execute(
            "UPDATE rollouts_run SET config_origins = %s WHERE id = %s",
            ['{"seed": "command line", "max_steps": "preset a b", "name": "moon"}', run.pk],
        )
        cursor.execute(
            "INSERT INTO rollouts_attempt (run_id, number, opened_at, started_at, closed_at, wandb_group,"
            " wandb_project, batch_size, max_token_len, checkpoint_dir, save_checkpoint_interval, starting_step,"
            " num_steps) VALUES (%(run)s, 1, now(), NULL, now(), '', '', 4, 1, '', 0, 0, 9),"
            " (%(run)s, 2, now(), now(), NULL, '', '', 4, 1, '', 0, 0, 9)",
            {"run": run.pk},
        )

    def check() -> None:
        assert [ScoredGroup.objects.get(pk=group.pk).reason for group in groups] == list(SENTENCES.values())
        assert [event.reason for event in Event.objects.filter(run=run).order_by("id")] == list(SENTENCES.values())
        run.refresh_from_db()
        assert {key: str(origin) for key, origin in run.origins.items()} == {
            "seed": "command line",
            "max_steps": "preset a b",
            "name": "moon",
        }
        assert [attempt.state for attempt in run.attempts.order_by("number")] == ["closed", "started"]

    return check


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
