"""The code of environments as it was played; and episodes that people try them with, of which the database keeps what
each says once it is over."""

import django.core.serializers.json
import django.db.models.deletion
import django.db.models.functions.datetime
import rollouts.models.run
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('rollouts', '0022_pools'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='EnvironmentSource',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=200)),
                ('version', models.CharField(max_length=100)),
                ('sha256', models.CharField(max_length=64)),
                ('files', models.JSONField()),
                ('first_seen_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
            ],
            options={
                'ordering': ['-id'],
                'constraints': [models.UniqueConstraint(fields=('name', 'version', 'sha256'), name='environment_source_once')],
            },
        ),
        migrations.CreateModel(
            name='Trial',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('reason_code', models.CharField(blank=True, default='', max_length=32)),
                ('reason_params', models.JSONField(blank=True, default=dict)),
                ('state_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('key', models.CharField(default=rollouts.models.run.new_key, editable=False, max_length=16, unique=True)),
                ('environment', models.JSONField()),
                ('name', models.CharField(max_length=200)),
                ('split', models.CharField(max_length=8)),
                ('problem_index', models.PositiveBigIntegerField()),
                ('temperature', models.FloatField()),
                ('max_tokens', models.PositiveIntegerField()),
                ('max_turns', models.PositiveIntegerField()),
                ('state', models.CharField(choices=[('waiting', 'WAITING'), ('playing', 'PLAYING'), ('finished', 'FINISHED'), ('failed', 'FAILED')], default='waiting', max_length=16)),
                ('holder', models.CharField(blank=True, max_length=100)),
                ('record', models.JSONField(default=dict, encoder=django.core.serializers.json.DjangoJSONEncoder)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('deadline_at', models.DateTimeField()),
                ('finished_at', models.DateTimeField(null=True)),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('run', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='trials', to='rollouts.run')),
            ],
            options={
                'ordering': ['-id'],
                'indexes': [models.Index(condition=models.Q(('state__in', ['failed', 'finished']), _negated=True), fields=['run'], name='trial_open'), models.Index(fields=['name', '-id'], name='trial_by_environment')],
                'constraints': [models.CheckConstraint(condition=models.Q(('state__in', ['waiting', 'playing', 'finished', 'failed'])), name='trial_state_known'), models.CheckConstraint(condition=models.Q(models.Q(('finished_at__isnull', False), ('state__in', ['failed', 'finished'])), models.Q(models.Q(('state__in', ['failed', 'finished']), _negated=True), ('finished_at__isnull', True)), _connector='OR'), name='trial_finished_at_in_terminal_states'), models.UniqueConstraint(condition=models.Q(('state__in', ['failed', 'finished']), _negated=True), fields=('created_by',), name='trial_one_at_a_time')],
            },
        ),
        migrations.RunSQL(
            "CREATE TRIGGER keep_last_state BEFORE UPDATE OF state, state_at, reason_code, reason_params, record "
            "ON rollouts_trial FOR EACH ROW WHEN (OLD.state IN ('finished', 'failed')) "
            "EXECUTE FUNCTION rollouts_keep()",
            "DROP TRIGGER keep_last_state ON rollouts_trial",
        ),
    ]
