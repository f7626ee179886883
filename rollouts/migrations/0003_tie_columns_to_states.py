"""Let the database refuse what only the services promised: moments without their state, ragged token arrays."""

import django.db.models.expressions
import django.db.models.functions.text
import django.db.models.lookups
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('rollouts', '0002_store_tokens_externally'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddConstraint(
            model_name='batch',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('delivered_at__isnull', False), ('state__in', ['delivered', 'trained'])), models.Q(models.Q(('state__in', ['delivered', 'trained']), _negated=True), ('delivered_at__isnull', True)), _connector='OR'), name='batch_delivered_at_once_delivered'),
        ),
        migrations.AddConstraint(
            model_name='policyversion',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('published_at__isnull', False), ('state', 'live')), models.Q(('published_at__isnull', True), ('state', 'written')), ('state', 'superseded'), _connector='OR'), name='policy_version_live_was_published'),
        ),
        migrations.AddConstraint(
            model_name='rollout',
            constraint=models.CheckConstraint(condition=models.Q(('trained_token_count__lte', models.F('token_count'))), name='rollout_trains_at_most_its_tokens'),
        ),
        migrations.AddConstraint(
            model_name='rollouttokens',
            constraint=models.CheckConstraint(condition=models.Q(django.db.models.lookups.Exact(django.db.models.functions.text.Length('token_ids'), django.db.models.expressions.CombinedExpression(models.Value(4), '*', django.db.models.functions.text.Length('loss_mask'))), django.db.models.lookups.Exact(django.db.models.functions.text.Length('inference_logprobs'), django.db.models.expressions.CombinedExpression(models.Value(4), '*', django.db.models.functions.text.Length('loss_mask')))), name='tokens_have_one_length'),
        ),
        migrations.AddConstraint(
            model_name='run',
            constraint=models.CheckConstraint(condition=models.Q(('live_version__gte', -1)), name='run_live_version_from_none'),
        ),
    ]
