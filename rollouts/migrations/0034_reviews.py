"""Groups that people look at first, and the rewards that they give: those of a held group may still change."""

import django.contrib.postgres.fields
from django.db import migrations, models


SCORES = (
    "problem_key, environment_version, lease_count, settled_at, rollout_count, token_count, reward_mean, reward_std, "
    "min_policy_version, max_policy_version, scored_count, solved_count"
)


def keep_scores(columns, condition):
    """The trigger that keeps scores of settled groups, in place of the one that is there (0021_solve_rates)."""
    return (
        "DROP TRIGGER keep_scores ON rollouts_scoredgroup;"
        f"CREATE TRIGGER keep_scores BEFORE UPDATE OF {columns} ON rollouts_scoredgroup FOR EACH ROW "
        f"WHEN ({condition}) EXECUTE FUNCTION rollouts_keep()"
    )


class Migration(migrations.Migration):

    dependencies = [
        ('rollouts', '0033_datasets'),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='scoredgroup',
            name='group_state_known',
        ),
        migrations.RemoveConstraint(
            model_name='scoredgroup',
            name='group_settled_at_after_playing',
        ),
        migrations.RemoveConstraint(
            model_name='scoredgroup',
            name='group_trainable_is_complete',
        ),
        migrations.AddField(
            model_name='scoredgroup',
            name='given_rewards',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.FloatField(null=True), null=True, size=None),
        ),
        migrations.AddField(
            model_name='scoredgroup',
            name='review_until',
            field=models.DateTimeField(null=True),
        ),
        migrations.AlterField(
            model_name='scoredgroup',
            name='state',
            field=models.CharField(choices=[('playing', 'PLAYING'), ('held', 'HELD'), ('ready', 'READY'), ('batched', 'BATCHED'), ('trained', 'TRAINED'), ('evaluated', 'EVALUATED'), ('stale', 'STALE'), ('filtered', 'FILTERED'), ('failed', 'FAILED'), ('rejected', 'REJECTED'), ('surplus', 'SURPLUS')], max_length=16),
        ),
        migrations.AddIndex(
            model_name='scoredgroup',
            index=models.Index(condition=models.Q(('state', 'held')), fields=['run', 'review_until'], name='group_held'),
        ),
        migrations.AddConstraint(
            model_name='scoredgroup',
            constraint=models.CheckConstraint(condition=models.Q(('state__in', ['playing', 'held', 'ready', 'batched', 'trained', 'evaluated', 'stale', 'filtered', 'failed', 'rejected', 'surplus'])), name='group_state_known'),
        ),
        migrations.AddConstraint(
            model_name='scoredgroup',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('settled_at__isnull', False), ('state__in', ['batched', 'evaluated', 'failed', 'filtered', 'held', 'ready', 'rejected', 'stale', 'surplus', 'trained'])), models.Q(models.Q(('state__in', ['batched', 'evaluated', 'failed', 'filtered', 'held', 'ready', 'rejected', 'stale', 'surplus', 'trained']), _negated=True), ('settled_at__isnull', True)), _connector='OR'), name='group_settled_at_after_playing'),
        ),
        migrations.AddConstraint(
            model_name='scoredgroup',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('state', 'held'), _negated=True), ('review_until__isnull', False), _connector='OR'), name='group_held_until_a_moment'),
        ),
        migrations.AddConstraint(
            model_name='scoredgroup',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('state__in', ['held', 'ready', 'batched', 'trained']), _negated=True), models.Q(('min_policy_version__isnull', False), ('purpose', 'train'), ('rollout_count__gt', 0)), _connector='OR'), name='group_trainable_is_complete'),
        ),
        migrations.RunSQL(
            keep_scores(f"{SCORES}, given_rewards", "OLD.settled_at IS NOT NULL AND OLD.state <> 'held'"),
            keep_scores(SCORES, "OLD.settled_at IS NOT NULL"),
        ),
    ]
