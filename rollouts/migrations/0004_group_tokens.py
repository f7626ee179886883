"""One row of token arrays per group, and what formation, replays and the Atropos API need of runs and batches."""

import django.db.models.deletion
import django.db.models.expressions
import django.db.models.functions.text
import django.db.models.lookups
import rollouts.models.run
from django.conf import settings
from django.db import migrations, models


JOIN = """
INSERT INTO rollouts_grouptokens (group_id, lengths, token_ids, loss_mask, inference_logprobs)
SELECT rollout.group_id,
       string_agg(
           substring(int4send(rollout.token_count) FROM 4 FOR 1) || substring(int4send(rollout.token_count) FROM 3 FOR 1)
           || substring(int4send(rollout.token_count) FROM 2 FOR 1) || substring(int4send(rollout.token_count) FROM 1 FOR 1),
           ''::bytea ORDER BY rollout.index
       ),
       string_agg(tokens.token_ids, ''::bytea ORDER BY rollout.index),
       string_agg(tokens.loss_mask, ''::bytea ORDER BY rollout.index),
       string_agg(tokens.inference_logprobs, ''::bytea ORDER BY rollout.index)
FROM rollouts_rollout AS rollout JOIN rollouts_rollouttokens AS tokens ON tokens.rollout_id = rollout.id
GROUP BY rollout.group_id
"""
SPLIT = """
INSERT INTO rollouts_rollouttokens (rollout_id, token_ids, loss_mask, inference_logprobs)
SELECT part.id, substring(tokens.token_ids FROM 4 * part.before + 1 FOR 4 * part.token_count),
       substring(tokens.loss_mask FROM part.before + 1 FOR part.token_count),
       substring(tokens.inference_logprobs FROM 4 * part.before + 1 FOR 4 * part.token_count)
FROM (
    SELECT id, group_id, token_count,
           (sum(token_count) OVER (PARTITION BY group_id ORDER BY index) - token_count)::int AS before
    FROM rollouts_rollout
) AS part JOIN rollouts_grouptokens AS tokens ON tokens.group_id = part.group_id
"""


def give_keys(apps, schema_editor):
    for run in apps.get_model("rollouts", "Run").objects.filter(atropos_key=None):
        run.atropos_key = rollouts.models.run.new_atropos_key()
        run.save(update_fields=["atropos_key"])


class Migration(migrations.Migration):

    dependencies = [
        ('rollouts', '0003_tie_columns_to_states'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='GroupTokens',
            fields=[
                ('group', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='tokens', serialize=False, to='rollouts.scoredgroup')),
                ('lengths', models.BinaryField()),
                ('token_ids', models.BinaryField()),
                ('loss_mask', models.BinaryField()),
                ('inference_logprobs', models.BinaryField()),
                ('ref_logprobs', models.BinaryField(null=True)),
                ('advantages', models.BinaryField(null=True)),
                ('extras', models.BinaryField(null=True)),
            ],
            options={
                'verbose_name_plural': 'group tokens',
            },
        ),
        migrations.RunSQL(
            [
                f"ALTER TABLE rollouts_grouptokens ALTER COLUMN {column} SET STORAGE EXTERNAL"
                for column in ("token_ids", "loss_mask", "inference_logprobs", "ref_logprobs", "advantages")
            ],
            migrations.RunSQL.noop,
        ),
        migrations.RunSQL(JOIN, SPLIT),
        # A queue grows by thousands a minute. With the statistics of an empty one, every index looks as good as the right one.
        migrations.RunSQL(
            "ALTER TABLE rollouts_scoredgroup SET"
            " (autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 500)",
            "ALTER TABLE rollouts_scoredgroup RESET (autovacuum_analyze_scale_factor, autovacuum_analyze_threshold)",
        ),
        migrations.CreateModel(
            name='Replay',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('first_step', models.PositiveIntegerField()),
                ('last_step', models.PositiveIntegerField()),
                ('taken', models.PositiveIntegerField(default=0)),
                ('actor', models.CharField(max_length=150)),
                ('reason', models.CharField(blank=True, max_length=500)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'ordering': ['id'],
            },
        ),
        migrations.RemoveConstraint(
            model_name='run',
            name='run_kind_known',
        ),
        migrations.RemoveIndex(
            model_name='scoredgroup',
            name='group_ready',
        ),
        migrations.AddField(
            model_name='batch',
            name='encoding',
            field=models.CharField(choices=[('msgpack', 'MessagePack of a TrainingBatch'), ('atropos', 'JSON as the Atropos protocol has it')], default='msgpack', max_length=8),
        ),
        migrations.AddField(
            model_name='batch',
            name='replay_of',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='replays', to='rollouts.batch'),
        ),
        # A default is computed once for all rows that exist, and each must get a key of its own.
        migrations.AddField("run", "atropos_key", models.CharField(max_length=64, null=True, editable=False)),
        migrations.RunPython(give_keys, migrations.RunPython.noop),
        migrations.AlterField(
            model_name='run',
            name='atropos_key',
            field=models.CharField(default=rollouts.models.run.new_atropos_key, editable=False, max_length=64, unique=True),
        ),
        migrations.AddField(
            model_name='run',
            name='mixture_clock',
            field=models.FloatField(default=0.0),
        ),
        migrations.AddField(
            model_name='runenvironment',
            name='virtual_time',
            field=models.FloatField(default=0.0),
        ),
        migrations.AlterField(
            model_name='run',
            name='kind',
            field=models.CharField(choices=[('rl', 'Reinforcement learning'), ('sft', 'Supervised fine-tuning'), ('external', 'External trainer')], max_length=8),
        ),
        migrations.AddIndex(
            model_name='scoredgroup',
            index=models.Index(condition=models.Q(('state', 'ready')), fields=['run', 'environment', 'rollout_count', 'id'], name='group_ready'),
        ),
        migrations.AddIndex(
            model_name='scoredgroup',
            index=models.Index(condition=models.Q(('state', 'ready')), fields=['min_policy_version', 'run'], name='group_ready_by_version'),
        ),
        migrations.AddConstraint(
            model_name='run',
            constraint=models.CheckConstraint(condition=models.Q(('kind__in', ['rl', 'sft', 'external'])), name='run_kind_known'),
        ),
        migrations.AddConstraint(
            model_name='grouptokens',
            constraint=models.CheckConstraint(condition=models.Q(django.db.models.lookups.Exact(django.db.models.functions.text.Length('token_ids'), django.db.models.expressions.CombinedExpression(models.Value(4), '*', django.db.models.functions.text.Length('loss_mask'))), django.db.models.lookups.Exact(django.db.models.functions.text.Length('inference_logprobs'), django.db.models.expressions.CombinedExpression(models.Value(4), '*', django.db.models.functions.text.Length('loss_mask'))), models.Q(('ref_logprobs__isnull', True), django.db.models.lookups.Exact(django.db.models.functions.text.Length('ref_logprobs'), django.db.models.expressions.CombinedExpression(models.Value(4), '*', django.db.models.functions.text.Length('loss_mask'))), _connector='OR'), models.Q(('advantages__isnull', True), django.db.models.lookups.Exact(django.db.models.functions.text.Length('advantages'), django.db.models.expressions.CombinedExpression(models.Value(4), '*', django.db.models.functions.text.Length('loss_mask'))), _connector='OR')), name='tokens_have_one_length'),
        ),
        migrations.AddField(
            model_name='replay',
            name='run',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='replays', to='rollouts.run'),
        ),
        migrations.AddField(
            model_name='replay',
            name='source',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='rollouts.run'),
        ),
        migrations.DeleteModel(
            name='RolloutTokens',
        ),
        migrations.AddConstraint(
            model_name='replay',
            constraint=models.CheckConstraint(condition=models.Q(('first_step__lte', models.F('last_step'))), name='replay_steps_ordered'),
        ),
        migrations.AddConstraint(
            model_name='replay',
            constraint=models.CheckConstraint(condition=models.Q(('taken__lte', django.db.models.expressions.CombinedExpression(django.db.models.expressions.CombinedExpression(models.F('last_step'), '-', models.F('first_step')), '+', models.Value(1)))), name='replay_takes_its_steps'),
        ),
    ]
