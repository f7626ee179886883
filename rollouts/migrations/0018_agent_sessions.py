"""Episodes that programs outside play, and the scope that opens them."""


import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.datetime
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('rollouts', '0017_branches'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='AgentSession',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ('key_digest', models.CharField(editable=False, max_length=64, unique=True)),
                ('group_key', models.CharField(max_length=64)),
                ('group_size', models.PositiveSmallIntegerField()),
                ('environment', models.CharField(max_length=100)),
                ('environment_version', models.CharField(blank=True, max_length=100)),
                ('problem', models.JSONField()),
                ('owner', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('actor', models.CharField(max_length=150)),
                ('opened_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('expires_at', models.DateTimeField()),
                ('finished_at', models.DateTimeField(null=True)),
                ('record', models.BinaryField(null=True)),
                ('grouped_at', models.DateTimeField(null=True)),
            ],
        ),
        migrations.RemoveConstraint(
            model_name='apitoken',
            name='token_scopes_known',
        ),
        migrations.AlterField(
            model_name='apitoken',
            name='scopes',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.CharField(choices=[('read', 'Read runs, metrics and events.'), ('launch', 'Launch and stop runs.'), ('submit', 'Submit scored groups; claim and settle work.'), ('play', 'Open sessions, through which programs play the live policy.'), ('train', 'Register as a trainer, fetch batches, acknowledge steps, announce weights.')], max_length=16), size=None),
        ),
        migrations.AddConstraint(
            model_name='apitoken',
            constraint=models.CheckConstraint(condition=models.Q(('scopes__contained_by', ['read', 'launch', 'submit', 'play', 'train'])), name='token_scopes_known'),
        ),
        migrations.AddField(
            model_name='agentsession',
            name='run',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='agent_sessions', to='rollouts.run'),
        ),
        migrations.AddIndex(
            model_name='agentsession',
            index=models.Index(fields=['run', 'group_key'], name='agentsession_group'),
        ),
        migrations.AddIndex(
            model_name='agentsession',
            index=models.Index(condition=models.Q(('grouped_at__isnull', True)), fields=['run', 'expires_at'], name='agentsession_under_way'),
        ),
        migrations.AddConstraint(
            model_name='agentsession',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('finished_at__isnull', True), ('record__isnull', True)), models.Q(('finished_at__isnull', False), ('record__isnull', False)), _connector='OR'), name='agentsession_record_exactly_when_finished'),
        ),
        migrations.AddConstraint(
            model_name='agentsession',
            constraint=models.CheckConstraint(condition=models.Q(('grouped_at__isnull', True), ('finished_at__isnull', False), _connector='OR'), name='agentsession_grouped_after_finished'),
        ),
        migrations.AddConstraint(
            model_name='agentsession',
            constraint=models.CheckConstraint(condition=models.Q(('group_size__gt', 0)), name='agentsession_group_size_positive'),
        ),
        migrations.RunSQL(
            "CREATE TRIGGER keep_record BEFORE UPDATE OF finished_at, record ON rollouts_agentsession FOR EACH ROW "
            "WHEN (OLD.finished_at IS NOT NULL) EXECUTE FUNCTION rollouts_keep()",
            "DROP TRIGGER keep_record ON rollouts_agentsession",
        ),
    ]
