"""The virtual time of an environment's turns, so that its weight can change; of rows of before by the weight they had."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0028_trial_endpoint")]

    operations = [
        migrations.AddField("runenvironment", "turn_time", models.FloatField(default=0.0)),
        migrations.RunSQL(
            "UPDATE rollouts_runenvironment SET turn_time = (cursor + passed) / weight", migrations.RunSQL.noop
        ),
    ]
