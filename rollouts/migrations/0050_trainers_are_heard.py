"""From here on every call of a trainer is noted: one that registered before and runs must not count as silent since."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0049_checkpoints_come_back")]

    operations = [
        migrations.RunSQL(
            "UPDATE rollouts_replica SET answered_at = now() WHERE kind = 'trainer' AND state = 'ready'",
            migrations.RunSQL.noop,
        )
    ]
