"""Queues of what people look at, their guidelines, items and turns."""

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.datetime
import rollouts.models.run
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('rollouts', '0031_curation'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Guideline',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('version', models.PositiveIntegerField()),
                ('text', models.TextField(blank=True, max_length=20000)),
                ('actor', models.CharField(max_length=150)),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
            ],
            options={
                'ordering': ['queue', '-version'],
            },
        ),
        migrations.CreateModel(
            name='LabelQueue',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(default=rollouts.models.run.new_key, editable=False, max_length=16, unique=True)),
                ('name', models.CharField(max_length=100)),
                ('unit', models.CharField(choices=[('group', 'A group, with all of its rollouts'), ('rollout', 'One rollout')], default='group', max_length=8)),
                ('filter', models.JSONField(default=dict)),
                ('tags', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=40), blank=True, default=list, size=None)),
                ('words_per_item', models.PositiveSmallIntegerField(default=1)),
                ('is_blind', models.BooleanField(default=False)),
                ('on_reject', models.CharField(blank=True, choices=[('reject', 'Rejects the group from training'), ('exclude', 'Excludes the group from exports')], max_length=8)),
                ('lease_s', models.PositiveIntegerField(default=600)),
                ('filled_until', models.DateTimeField(null=True)),
                ('filled_group', models.BigIntegerField(default=0)),
                ('actor', models.CharField(max_length=150)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('closed_at', models.DateTimeField(null=True)),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.CreateModel(
            name='QueueItem',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('words', models.PositiveSmallIntegerField(db_default=0, default=0)),
                ('is_open', models.BooleanField(db_default=True, default=True)),
            ],
        ),
        migrations.CreateModel(
            name='QueueTurn',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ('taken_at', models.DateTimeField()),
                ('expires_at', models.DateTimeField()),
            ],
        ),
        migrations.RemoveConstraint(
            model_name='label',
            name='label_first_word_once',
        ),
        migrations.AddField(
            model_name='label',
            name='guideline',
            field=models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='labels', to='rollouts.guideline'),
        ),
        migrations.AddField(
            model_name='labelqueue',
            name='project',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='label_queues', to='rollouts.project'),
        ),
        migrations.AddField(
            model_name='guideline',
            name='queue',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='guidelines', to='rollouts.labelqueue'),
        ),
        migrations.AddField(
            model_name='label',
            name='queue',
            field=models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='labels', to='rollouts.labelqueue'),
        ),
        migrations.AddIndex(
            model_name='label',
            index=models.Index(condition=models.Q(('queue__isnull', False)), fields=['queue'], name='label_by_queue'),
        ),
        migrations.AddConstraint(
            model_name='label',
            constraint=models.UniqueConstraint(condition=models.Q(('supersedes__isnull', True)), fields=('person', 'group', 'rollout', 'other', 'queue'), name='label_first_word_once', nulls_distinct=False),
        ),
        migrations.AddConstraint(
            model_name='label',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('guideline__isnull', True), ('queue__isnull', True)), models.Q(('guideline__isnull', False), ('queue__isnull', False)), _connector='OR'), name='label_guided_exactly_in_a_queue'),
        ),
        migrations.AddField(
            model_name='queueitem',
            name='group',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='rollouts.scoredgroup'),
        ),
        migrations.AddField(
            model_name='queueitem',
            name='queue',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='items', to='rollouts.labelqueue'),
        ),
        migrations.AddField(
            model_name='queueitem',
            name='rollout',
            field=models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='rollouts.rollout'),
        ),
        migrations.AddField(
            model_name='queueturn',
            name='act',
            field=models.OneToOneField(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='turn', to='rollouts.act'),
        ),
        migrations.AddField(
            model_name='queueturn',
            name='item',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='turns', to='rollouts.queueitem'),
        ),
        migrations.AddField(
            model_name='queueturn',
            name='label',
            field=models.OneToOneField(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='turn', to='rollouts.label'),
        ),
        migrations.AddField(
            model_name='queueturn',
            name='person',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddConstraint(
            model_name='labelqueue',
            constraint=models.UniqueConstraint(fields=('project', 'name'), name='label_queue_name_once_per_project'),
        ),
        migrations.AddConstraint(
            model_name='labelqueue',
            constraint=models.CheckConstraint(condition=models.Q(('unit__in', ['group', 'rollout'])), name='label_queue_unit_known'),
        ),
        migrations.AddConstraint(
            model_name='labelqueue',
            constraint=models.CheckConstraint(condition=models.Q(('on_reject__in', ['', 'reject', 'exclude'])), name='label_queue_effect_known'),
        ),
        migrations.AddConstraint(
            model_name='labelqueue',
            constraint=models.CheckConstraint(condition=models.Q(('words_per_item__gte', 1), ('words_per_item__lte', 20)), name='label_queue_words_per_item'),
        ),
        migrations.AddConstraint(
            model_name='labelqueue',
            constraint=models.CheckConstraint(condition=models.Q(('lease_s__gte', 5), ('lease_s__lte', 86400)), name='label_queue_lease'),
        ),
        migrations.AddConstraint(
            model_name='labelqueue',
            constraint=models.CheckConstraint(condition=models.Q(('tags__len__lte', 9)), name='label_queue_has_few_tags'),
        ),
        migrations.AddConstraint(
            model_name='guideline',
            constraint=models.UniqueConstraint(fields=('queue', 'version'), name='guideline_version_once_per_queue'),
        ),
        migrations.AddIndex(
            model_name='queueitem',
            index=models.Index(condition=models.Q(('is_open', True)), fields=['queue', 'id'], name='queue_item_open'),
        ),
        migrations.AddConstraint(
            model_name='queueitem',
            constraint=models.UniqueConstraint(fields=('queue', 'group', 'rollout'), name='queue_item_once_per_queue', nulls_distinct=False),
        ),
        migrations.AddIndex(
            model_name='queueturn',
            index=models.Index(fields=['person', '-taken_at'], name='turn_by_person'),
        ),
        migrations.AddConstraint(
            model_name='queueturn',
            constraint=models.UniqueConstraint(fields=('item', 'person'), name='turn_once_per_item_and_person'),
        ),
        migrations.AddConstraint(
            model_name='queueturn',
            constraint=models.CheckConstraint(condition=models.Q(('expires_at__gt', models.F('taken_at'))), name='turn_expires_after_it_is_taken'),
        ),
    ]
