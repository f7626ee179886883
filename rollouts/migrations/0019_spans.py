"""Where the time of episodes went, null in every row of before; and environments that let others go first."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0018_agent_sessions")]

    operations = [
        migrations.AddField(model_name="rollout", name="spans", field=models.JSONField(null=True)),
        migrations.AddField("runenvironment", "passed", models.PositiveBigIntegerField(default=0)),
        migrations.CreateModel(
            name="DriverLoad",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("holder", models.CharField(max_length=100)),
                ("reported_at", models.DateTimeField()),
                ("sessions", models.PositiveIntegerField(default=0)),
                ("queued", models.PositiveIntegerField(default=0)),
                ("asking", models.PositiveIntegerField(default=0)),
                ("scoring", models.PositiveIntegerField(default=0)),
                ("tokens", models.PositiveBigIntegerField(default=0)),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="driver_loads",
                        to="rollouts.run",
                    ),
                ),
            ],
        ),
        migrations.AddConstraint(
            "driverload", models.UniqueConstraint(fields=("run", "holder"), name="driver_load_once_per_holder")
        ),
    ]
