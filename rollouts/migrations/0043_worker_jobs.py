from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [("rollouts", "0042_promised_cores")]

    operations = [
        migrations.AddField(
            "replica", "job_number", models.CharField(blank=True, db_default="", default="", max_length=32)
        ),
        migrations.CreateModel(
            "KeptPool",
            [
                ("name", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("minimum", models.PositiveIntegerField()),
                ("maximum", models.PositiveIntegerField()),
                ("complaint", models.CharField(blank=True, db_default="", default="", max_length=500)),
            ],
        ),
        migrations.CreateModel(
            "WorkerJob",
            [
                ("token", models.CharField(max_length=100, primary_key=True, serialize=False)),
                ("pool", models.CharField(blank=True, db_default="", default="", max_length=32)),
                ("number", models.CharField(max_length=32)),
                ("state", models.CharField(max_length=32)),
                ("node", models.CharField(blank=True, db_default="", default="", max_length=255)),
                ("why", models.CharField(blank=True, db_default="", default="", max_length=500)),
                ("is_draining", models.BooleanField(db_default=False, default=False)),
            ],
            {"ordering": ["pool", "token"]},
        ),
    ]
