from django.db import migrations, models
from django.db.models import F, Q


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0019_spans")]

    operations = [
        migrations.AddField("evaluation", "min_policy_version", models.PositiveIntegerField(null=True)),
        migrations.AddField("evaluation", "max_policy_version", models.PositiveIntegerField(null=True)),
        migrations.AddConstraint(
            "evaluation",
            models.CheckConstraint(
                condition=Q(min_policy_version__isnull=True, max_policy_version__isnull=True)
                | Q(min_policy_version__lte=F("max_policy_version")),
                name="evaluation_versions_ordered",
            ),
        ),
        migrations.RemoveConstraint("scoredgroup", "group_evaluation_exactly_for_eval"),
        migrations.AddConstraint(
            "scoredgroup",
            models.CheckConstraint(
                condition=Q(purpose="eval", evaluation__isnull=False, problem_index__isnull=False)
                | Q(purpose="train", evaluation__isnull=True),
                name="group_evaluation_exactly_for_eval",
            ),
        ),
        migrations.AddConstraint(
            "scoredgroup",
            models.UniqueConstraint(
                fields=["evaluation", "problem_index"],
                condition=Q(evaluation__isnull=False),
                name="group_problem_once_per_evaluation",
            ),
        ),
        migrations.RemoveIndex("scoredgroup", "group_evaluation"),
    ]
