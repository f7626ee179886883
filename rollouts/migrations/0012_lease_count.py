from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("rollouts", "0011_environment_version"),
    ]

    operations = [
        migrations.RenameField(model_name="scoredgroup", old_name="attempts", new_name="lease_count"),
    ]
