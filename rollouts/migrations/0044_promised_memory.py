from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [("rollouts", "0043_worker_jobs")]

    operations = [
        migrations.AlterField(
            "placement",
            "kind",
            models.CharField(choices=[("gpu", "GPU"), ("core", "core"), ("memory", "GiB of memory")], max_length=8),
        ),
        migrations.RemoveConstraint("placement", "placement_kind_known"),
        migrations.AddConstraint(
            "placement",
            models.CheckConstraint(
                condition=models.Q(("kind__in", ["gpu", "core", "memory"])), name="placement_kind_known"
            ),
        ),
    ]
