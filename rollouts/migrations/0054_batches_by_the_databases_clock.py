"""When a batch was formed is compared with when groups were settled, which is by the clock of the database."""

from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0053_keys_in_order")]

    operations = [
        migrations.AlterField("batch", "formed_at", models.DateTimeField(db_default=Now(), editable=False)),
    ]
