"""How many rollouts of a group have a reward and how many solved the problem; null in every row of before."""

from django.db import migrations, models
from django.db.models import F, Q


def keep_scores(columns):
    return (
        "DROP TRIGGER keep_scores ON rollouts_scoredgroup;"
        f"CREATE TRIGGER keep_scores BEFORE UPDATE OF {columns} ON rollouts_scoredgroup FOR EACH ROW "
        "WHEN (OLD.settled_at IS NOT NULL) EXECUTE FUNCTION rollouts_keep()"
    )


BEFORE = (
    "problem_key, environment_version, lease_count, settled_at, rollout_count, token_count, reward_mean, reward_std, "
    "min_policy_version, max_policy_version"
)


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0020_evaluations_over_versions")]

    operations = [
        migrations.AddField("scoredgroup", "scored_count", models.PositiveIntegerField(null=True)),
        migrations.AddField("scoredgroup", "solved_count", models.PositiveIntegerField(null=True)),
        migrations.AddConstraint(
            "scoredgroup",
            models.CheckConstraint(
                condition=Q(solved_count__lte=F("scored_count"), scored_count__lte=F("rollout_count")),
                name="group_solves_at_most_what_it_scored",
            ),
        ),
        migrations.RunSQL(keep_scores(f"{BEFORE}, scored_count, solved_count"), keep_scores(BEFORE)),
    ]
