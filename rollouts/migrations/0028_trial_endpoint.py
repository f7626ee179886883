"""Which endpoint plays a trial in place of a run's policy."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0027_lease_versions")]

    operations = [
        migrations.AddField("trial", "endpoint", models.CharField(blank=True, default="", max_length=64), False),
    ]
