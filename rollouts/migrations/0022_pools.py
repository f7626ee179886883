"""Difficulty pools: how many problems an environment has, how many were handed out, and how often each was solved."""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q

POOLS = ["new", "normal", "hard", "easy"]


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0021_solve_rates")]

    operations = [
        migrations.AddField("runenvironment", "problems", models.PositiveBigIntegerField(null=True)),
        migrations.AddField("runenvironment", "unseen", models.PositiveBigIntegerField(default=0)),
        migrations.CreateModel(
            name="KnownProblem",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("problem_index", models.PositiveBigIntegerField()),
                (
                    "pool",
                    models.CharField(choices=[(pool, pool.upper()) for pool in POOLS], default="new", max_length=8),
                ),
                ("solve_rate", models.FloatField(null=True)),
                ("groups", models.PositiveIntegerField(default=0)),
                ("turn", models.PositiveBigIntegerField()),
                (
                    "environment",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="known_problems",
                        to="rollouts.runenvironment",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["environment", "pool", "turn"], name="known_problem_queue")],
                "constraints": [
                    models.UniqueConstraint(fields=["environment", "problem_index"], name="known_problem_once"),
                    models.CheckConstraint(condition=Q(pool__in=POOLS), name="known_problem_pool_known"),
                    models.CheckConstraint(
                        condition=Q(pool="new", solve_rate__isnull=True, groups=0)
                        | (~Q(pool="new") & Q(solve_rate__isnull=False, solve_rate__gte=0, solve_rate__lte=1, groups__gt=0)),
                        name="known_problem_new_until_scored",
                    ),
                ],
            },
        ),
    ]
