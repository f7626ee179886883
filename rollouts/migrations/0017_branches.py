"""Rollouts of several token sequences: null in every row of before, which are one each."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0016_tools")]

    operations = [
        migrations.AddField(model_name="grouptokens", name="branch_lengths", field=models.BinaryField(null=True)),
        migrations.AddField(model_name="rollout", name="earlier_branches", field=models.JSONField(null=True)),
        # Out of line and uncompressed, like its neighbours.
        migrations.RunSQL(
            "ALTER TABLE rollouts_grouptokens ALTER COLUMN branch_lengths SET STORAGE EXTERNAL",
            migrations.RunSQL.noop,
        ),
    ]
