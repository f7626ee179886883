"""What the policy was told it may call: null in every row of before."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0015_closed_rows")]

    operations = [
        migrations.AddField(model_name="rollout", name="tools", field=models.JSONField(null=True)),
    ]
