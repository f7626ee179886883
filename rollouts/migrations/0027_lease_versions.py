"""Which policy version was live when a lease was claimed; null in those of before."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0026_seats")]

    operations = [
        migrations.AddField("lease", "policy_version", models.PositiveIntegerField(null=True)),
    ]
