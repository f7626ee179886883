import datetime

import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models

import rollouts.models.address
import rollouts.models.run

ADMIN = "admin"
"""Who runs of the command line belong to: whoever has it may sign in as them."""


def make_addresses(apps, schema_editor):
    """An address for every run that takes anything from outside.

    It is its run's creator's from now on, and of the same 30 days for all. `GET /reset_data` goes on to work only where
    it was in use: on external runs that are not over and that had an attempt closed.
    """
    run_model, address = apps.get_model("rollouts", "Run"), apps.get_model("rollouts", "Address")
    attempt = apps.get_model("rollouts", "Attempt")
    admin = apps.get_model("auth", "User").objects.filter(username=ADMIN, is_superuser=True).first()
    over = ("finished", "failed", "stopped")
    was_reset = set(attempt.objects.filter(closed_at__isnull=False).values_list("run_id", flat=True))
    expires_at = django.utils.timezone.now() + datetime.timedelta(days=30)
    rows = run_model.objects.exclude(kind="sft").values_list("pk", "atropos_key", "created_by_id", "kind", "state")
    address.objects.bulk_create(
        (
            address(
                run_id=pk,
                key=key,
                owner_id=creator or (admin and admin.pk),
                expires_at=expires_at,
                resets_on_get=kind == "external" and state not in over and pk in was_reset,
            )
            for pk, key, creator, kind, state in rows.iterator()
        ),
        batch_size=1000,
    )


def put_keys_back(apps, schema_editor):
    run_model = apps.get_model("rollouts", "Run")
    for run_id, key in apps.get_model("rollouts", "Address").objects.values_list("run_id", "key").iterator():
        run_model.objects.filter(pk=run_id).update(atropos_key=key)
    for run in run_model.objects.filter(atropos_key=None).only("pk").iterator():
        run_model.objects.filter(pk=run.pk).update(atropos_key=rollouts.models.run.new_atropos_key())


class Migration(migrations.Migration):
    dependencies = [
        ("rollouts", "0013_trust"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Address",
            fields=[
                (
                    "run",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="address",
                        serialize=False,
                        to="rollouts.run",
                    ),
                ),
                (
                    "key",
                    models.CharField(
                        default=rollouts.models.run.new_atropos_key, editable=False, max_length=64, unique=True
                    ),
                ),
                ("expires_at", models.DateTimeField(default=rollouts.models.address.default_expiry)),
                ("used_at", models.DateTimeField(null=True)),
                ("resets_on_get", models.BooleanField(default=False)),
                (
                    "owner",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
        ),
        # Backwards: a column that may be empty, then every run's key, then one that may not.
        migrations.AlterField(
            "run", "atropos_key", models.CharField(editable=False, max_length=64, null=True, unique=True)
        ),
        # What was written is checked before a table changes again, in either direction.
        migrations.RunSQL(migrations.RunSQL.noop, "SET CONSTRAINTS ALL IMMEDIATE"),
        migrations.RunPython(make_addresses, put_keys_back),
        migrations.RunSQL("SET CONSTRAINTS ALL IMMEDIATE", migrations.RunSQL.noop),
        migrations.RemoveField(model_name="run", name="atropos_key"),
    ]
