from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0047_values_are_words")]

    operations = [
        migrations.AddIndex(
            "scoredgroup",
            models.Index(
                fields=["run", "state_at"], condition=models.Q(settled_at__isnull=False), name="group_changed"
            ),
        ),
    ]
