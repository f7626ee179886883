"""Who a rollout played in a match: nobody in particular in every row of before."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0025_eval_runs")]

    operations = [
        migrations.AddField("rollout", "seat", models.CharField(blank=True, db_default="", default="", max_length=40)),
    ]
