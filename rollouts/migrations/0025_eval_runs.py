import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q

KINDS = [
    ("rl", "Reinforcement learning"),
    ("sft", "Supervised fine-tuning"),
    ("external", "External trainer"),
    ("eval", "Evaluation"),
]


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0024_endpoints")]

    operations = [
        migrations.AlterField("run", "kind", models.CharField(choices=KINDS, max_length=8)),
        migrations.RemoveConstraint("run", "run_kind_known"),
        migrations.AddConstraint(
            "run", models.CheckConstraint(condition=Q(kind__in=[kind for kind, _ in KINDS]), name="run_kind_known")
        ),
        migrations.AddField("runenvironment", "problem_count", models.PositiveBigIntegerField(null=True)),
        migrations.AddField("evaluation", "figures", models.JSONField(null=True)),
        migrations.AddField(
            "policyversion",
            "checkpoint",
            models.ForeignKey(
                editable=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="measured_as",
                to="rollouts.checkpoint",
            ),
        ),
    ]
