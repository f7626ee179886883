"""What people say of groups and do with them: labels, acts, and from what they withhold a group.

What somebody rejected may be restored, so `rejected` is no last state any more (see 0015_closed_rows).
"""

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.datetime
import rollouts.models.run
from django.conf import settings
from django.db import migrations, models

LAST_STATES = ["trained", "evaluated", "stale", "filtered", "failed", "surplus"]
STATE = "state, state_at, reason_code, reason_params"


def keep(states):
    """The trigger that keeps the last states of groups, in place of the one that is there."""
    condition = "OLD.state IN ({})".format(", ".join(f"'{state}'" for state in states))
    return (
        "DROP TRIGGER keep_last_state ON rollouts_scoredgroup; "
        f"CREATE TRIGGER keep_last_state BEFORE UPDATE OF {STATE} ON rollouts_scoredgroup FOR EACH ROW "
        f"WHEN ({condition}) EXECUTE FUNCTION rollouts_keep()"
    )


class Migration(migrations.Migration):

    dependencies = [
        ('rollouts', '0030_replica_policy'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Act',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(default=rollouts.models.run.new_key, editable=False, max_length=16, unique=True)),
                ('verb', models.CharField(choices=[('reject', 'Reject from training: what is in no batch yet never enters one, and nothing of it is exported.'), ('exclude', 'Exclude from exports: training goes on with it.'), ('restore', 'Restore: exported again, and trained if its run still makes batches.'), ('undo', 'Undo an act: each of its groups is again as it was before.')], max_length=16)),
                ('actor', models.CharField(max_length=150)),
                ('note', models.TextField(blank=True, max_length=2000)),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.CreateModel(
            name='ActItem',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('withheld_before', models.CharField(blank=True, choices=[('rejected', 'From batches that are still to be formed, and from exports.'), ('excluded', 'From exports.')], max_length=8)),
            ],
        ),
        migrations.CreateModel(
            name='Label',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(default=rollouts.models.run.new_key, editable=False, max_length=16, unique=True)),
                ('actor', models.CharField(max_length=150)),
                ('verdict', models.CharField(choices=[('accept', 'Good to learn from.'), ('reject', 'Not to be learned from.'), ('skip', 'Looked at, and left to others.'), ('withdrawn', 'Taken back: as if it had never been said.')], max_length=16)),
                ('preference', models.CharField(blank=True, choices=[('first', 'The rollout is better than the other one.'), ('other', 'The other one is better.'), ('tie', 'Neither is better.')], max_length=8)),
                ('tags', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=40), blank=True, default=list, size=None)),
                ('score', models.FloatField(null=True)),
                ('note', models.TextField(blank=True, max_length=2000)),
                ('seconds', models.FloatField(null=True)),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.AddField(
            model_name='scoredgroup',
            name='withheld',
            field=models.CharField(blank=True, choices=[('rejected', 'From batches that are still to be formed, and from exports.'), ('excluded', 'From exports.')], db_default='', default='', max_length=8),
        ),
        migrations.AddConstraint(
            model_name='scoredgroup',
            constraint=models.CheckConstraint(condition=models.Q(('withheld__in', ['', 'rejected', 'excluded'])), name='group_withheld_known'),
        ),
        migrations.AddConstraint(
            model_name='scoredgroup',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('state', 'rejected'), _negated=True), ('withheld', 'rejected'), _connector='OR'), name='group_rejected_is_withheld'),
        ),
        migrations.AddField(
            model_name='act',
            name='person',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='act',
            name='run',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='acts', to='rollouts.run'),
        ),
        migrations.AddField(
            model_name='act',
            name='undoes',
            field=models.OneToOneField(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='undone_by', to='rollouts.act'),
        ),
        migrations.AddField(
            model_name='actitem',
            name='act',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='items', to='rollouts.act'),
        ),
        migrations.AddField(
            model_name='actitem',
            name='group',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='act_items', to='rollouts.scoredgroup'),
        ),
        migrations.AddField(
            model_name='label',
            name='group',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='labels', to='rollouts.scoredgroup'),
        ),
        migrations.AddField(
            model_name='label',
            name='other',
            field=models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='rollouts.rollout'),
        ),
        migrations.AddField(
            model_name='label',
            name='person',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='labels', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='label',
            name='rollout',
            field=models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='labels', to='rollouts.rollout'),
        ),
        migrations.AddField(
            model_name='label',
            name='run',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='labels', to='rollouts.run'),
        ),
        migrations.AddField(
            model_name='label',
            name='supersedes',
            field=models.OneToOneField(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='superseded_by', to='rollouts.label'),
        ),
        migrations.AddIndex(
            model_name='act',
            index=models.Index(fields=['run', '-id'], name='act_by_run'),
        ),
        migrations.AddConstraint(
            model_name='act',
            constraint=models.CheckConstraint(condition=models.Q(('verb__in', ['reject', 'exclude', 'restore', 'undo'])), name='act_verb_known'),
        ),
        migrations.AddConstraint(
            model_name='act',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('undoes__isnull', False), ('verb', 'undo')), models.Q(models.Q(('verb', 'undo'), _negated=True), ('undoes__isnull', True)), _connector='OR'), name='act_undoes_exactly_by_undo'),
        ),
        migrations.AddConstraint(
            model_name='actitem',
            constraint=models.UniqueConstraint(fields=('act', 'group'), name='act_item_once_per_group'),
        ),
        migrations.AddIndex(
            model_name='label',
            index=models.Index(fields=['group'], name='label_by_group'),
        ),
        migrations.AddIndex(
            model_name='label',
            index=models.Index(fields=['run', '-id'], name='label_by_run'),
        ),
        migrations.AddConstraint(
            model_name='label',
            constraint=models.CheckConstraint(condition=models.Q(('verdict__in', ['accept', 'reject', 'skip', 'withdrawn'])), name='label_verdict_known'),
        ),
        migrations.AddConstraint(
            model_name='label',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('other__isnull', True), ('preference', '')), models.Q(('other__isnull', False), ('preference__in', ['first', 'other', 'tie']), ('rollout__isnull', False)), _connector='OR'), name='label_prefers_one_of_two'),
        ),
        migrations.AddConstraint(
            model_name='label',
            constraint=models.CheckConstraint(condition=models.Q(('tags__len__lte', 20)), name='label_has_few_tags'),
        ),
        migrations.AddConstraint(
            model_name='label',
            constraint=models.CheckConstraint(condition=models.Q(('seconds__isnull', True), ('seconds__gte', 0), _connector='OR'), name='label_took_time'),
        ),
        migrations.AddConstraint(
            model_name='label',
            constraint=models.UniqueConstraint(condition=models.Q(('supersedes__isnull', True)), fields=('person', 'group', 'rollout', 'other'), name='label_first_word_once', nulls_distinct=False),
        ),
        migrations.AddConstraint(
            model_name='label',
            constraint=models.CheckConstraint(condition=models.Q(('score__isnull', True), models.Q(('score__gte', -3.4e+38), ('score__lte', 3.4e+38)), _connector='OR'), name='label_score_finite'),
        ),
        migrations.RemoveConstraint(
            model_name='apitoken',
            name='token_scopes_known',
        ),
        migrations.AlterField(
            model_name='apitoken',
            name='scopes',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.CharField(choices=[('read', 'Read runs, metrics and events.'), ('curate', 'Label groups; reject, exclude and restore them.'), ('launch', 'Launch and stop runs.'), ('submit', 'Submit scored groups; claim and settle work.'), ('play', 'Open sessions, through which programs play the live policy.'), ('train', 'Register as a trainer, fetch batches, acknowledge steps, announce weights.')], max_length=16), size=None),
        ),
        migrations.AddConstraint(
            model_name='apitoken',
            constraint=models.CheckConstraint(condition=models.Q(('scopes__contained_by', ['read', 'curate', 'launch', 'submit', 'play', 'train'])), name='token_scopes_known'),
        ),
        migrations.RunSQL(keep(LAST_STATES), keep([*LAST_STATES, "rejected"])),
    ]
