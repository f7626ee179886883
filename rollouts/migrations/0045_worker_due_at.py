from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [("rollouts", "0044_promised_memory")]

    operations = [migrations.AddField("workerjob", "due_at", models.DateTimeField(null=True))]
