"""Pairs of rollouts beside each other, queues of what people disagree on, and who is given items."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('rollouts', '0034_reviews'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='label',
            name='label_prefers_one_of_two',
        ),
        migrations.RemoveConstraint(
            model_name='labelqueue',
            name='label_queue_unit_known',
        ),
        migrations.RemoveConstraint(
            model_name='queueitem',
            name='queue_item_once_per_queue',
        ),
        migrations.AddField(
            model_name='labelqueue',
            name='people',
            field=models.ManyToManyField(blank=True, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='labelqueue',
            name='source',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='adjudicated_in', to='rollouts.labelqueue'),
        ),
        migrations.AddField(
            model_name='queueitem',
            name='other',
            field=models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='rollouts.rollout'),
        ),
        migrations.AlterField(
            model_name='labelqueue',
            name='unit',
            field=models.CharField(choices=[('group', 'A group, with all of its rollouts'), ('rollout', 'One rollout'), ('pair', 'Two rollouts of a group, side by side')], default='group', max_length=8),
        ),
        migrations.AddConstraint(
            model_name='label',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('other__isnull', True), ('preference', '')), models.Q(('other__isnull', False), ('preference__in', ['first', 'other', 'tie']), ('rollout__isnull', False)), models.Q(('preference', ''), ('rollout__isnull', False), ('verdict__in', ['skip', 'withdrawn'])), _connector='OR'), name='label_prefers_one_of_two'),
        ),
        migrations.AddConstraint(
            model_name='labelqueue',
            constraint=models.CheckConstraint(condition=models.Q(('unit__in', ['group', 'rollout', 'pair'])), name='label_queue_unit_known'),
        ),
        migrations.AddConstraint(
            model_name='labelqueue',
            constraint=models.CheckConstraint(condition=models.Q(('source__isnull', True), models.Q(('is_blind', False), ('words_per_item', 1)), _connector='OR'), name='label_queue_adjudicates_by_one_word'),
        ),
        migrations.AddConstraint(
            model_name='queueitem',
            constraint=models.UniqueConstraint(fields=('queue', 'group', 'rollout', 'other'), name='queue_item_once_per_queue', nulls_distinct=False),
        ),
        migrations.AddConstraint(
            model_name='queueitem',
            constraint=models.CheckConstraint(condition=models.Q(('other__isnull', True), models.Q(('rollout__isnull', False), models.Q(('rollout', models.F('other')), _negated=True)), _connector='OR'), name='queue_item_pairs_two'),
        ),
    ]
