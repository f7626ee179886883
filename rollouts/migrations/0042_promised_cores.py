from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [("rollouts", "0041_server_arguments")]

    operations = [
        migrations.RemoveConstraint("placement", "placement_gpu_promised_once"),
        migrations.RenameField("placement", "gpu", "unit"),
        migrations.AddField(
            "placement",
            "kind",
            models.CharField(choices=[("gpu", "GPU"), ("core", "core")], default="gpu", max_length=8),
            preserve_default=False,
        ),
        migrations.AddConstraint(
            "placement",
            models.UniqueConstraint(
                condition=models.Q(("released_at__isnull", True)),
                fields=("host", "kind", "unit"),
                name="placement_promised_once",
            ),
        ),
        migrations.AddConstraint(
            "placement",
            models.CheckConstraint(condition=models.Q(("kind__in", ["gpu", "core"])), name="placement_kind_known"),
        ),
    ]
