"""What administrators allow runs to execute of others."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('rollouts', '0012_lease_count'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Trust',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('remote_code', 'Python files of a model: `model.trust_remote_code`'), ('loss', 'A loss function by its dotted path'), ('environment', 'An environment that another package brings')], max_length=16)),
                ('name', models.CharField(max_length=500)),
                ('allowed_actor', models.CharField(max_length=150)),
                ('allowed_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('withdrawn_actor', models.CharField(blank=True, max_length=150)),
                ('withdrawn_at', models.DateTimeField(null=True)),
                ('allowed_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['-id'],
                'constraints': [models.UniqueConstraint(condition=models.Q(('withdrawn_at__isnull', True)), fields=('kind', 'name'), name='trust_once_at_a_time'), models.CheckConstraint(condition=models.Q(('kind__in', ['remote_code', 'loss', 'environment'])), name='trust_kind_known'), models.CheckConstraint(condition=models.Q(('withdrawn_at__isnull', True), models.Q(('withdrawn_actor', ''), _negated=True), _connector='XOR'), name='trust_withdrawn_by_somebody')],
            },
        ),
    ]
