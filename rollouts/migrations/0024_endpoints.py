"""Models of others that administrators let runs ask. A row is closed once, and a trigger keeps it so."""

import django.core.validators
import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('rollouts', '0023_trials'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Endpoint',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=64, validators=[django.core.validators.RegexValidator('^[a-z0-9][a-z0-9-]{0,63}\\Z')])),
                ('base_url', models.CharField(max_length=500)),
                ('model', models.CharField(max_length=200)),
                ('key_reference', models.CharField(blank=True, max_length=100)),
                ('max_in_flight', models.PositiveIntegerField(default=8, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(1024)])),
                ('timeout_s', models.PositiveIntegerField(default=60, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(600)])),
                ('is_for_all', models.BooleanField(default=False)),
                ('note', models.CharField(blank=True, max_length=500)),
                ('added_actor', models.CharField(max_length=150)),
                ('added_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('removed_actor', models.CharField(blank=True, max_length=150)),
                ('removed_at', models.DateTimeField(null=True)),
                ('added_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('projects', models.ManyToManyField(blank=True, related_name='endpoints', to='rollouts.project')),
            ],
            options={
                'ordering': ['-id'],
                'constraints': [models.UniqueConstraint(condition=models.Q(('removed_at__isnull', True)), fields=('name',), name='endpoint_name_once_at_a_time'), models.CheckConstraint(condition=models.Q(('name__regex', '^[a-z0-9][a-z0-9-]{0,63}\\Z')), name='endpoint_name_plain'), models.CheckConstraint(condition=models.Q(('key_reference__regex', '^(env:[A-Z][A-Z0-9_]*(_KEY|_TOKEN)|file:[a-z0-9][a-z0-9._-]*)?$')), name='endpoint_key_is_a_reference'), models.CheckConstraint(condition=models.Q(('max_in_flight__range', (1, 1024)), ('timeout_s__range', (1, 600))), name='endpoint_bounded'), models.CheckConstraint(condition=models.Q(('removed_at__isnull', True), models.Q(('removed_actor', ''), _negated=True), _connector='XOR'), name='endpoint_removed_by_somebody')],
            },
        ),
        migrations.RunSQL(
            "CREATE TRIGGER keep_removal BEFORE UPDATE OF removed_actor, removed_at ON rollouts_endpoint FOR EACH ROW "
            "WHEN (OLD.removed_at IS NOT NULL) EXECUTE FUNCTION rollouts_keep()",
            "DROP TRIGGER keep_removal ON rollouts_endpoint",
        ),
    ]
