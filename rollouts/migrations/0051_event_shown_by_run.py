from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0050_trainers_are_heard")]

    operations = [
        migrations.AddIndex(
            "event",
            models.Index(
                fields=["run", "-id"],
                condition=~models.Q(object_kind__in=["scoredgroup", "batch"]),
                name="event_shown_by_run",
            ),
        ),
    ]
