"""Which of a run's policies an inference replica serves: slots are counted for each."""

from django.db import migrations, models
from django.db.models import Q

NAME = "replica_one_alive_per_slot"


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0029_turn_time")]

    operations = [
        migrations.AddField("replica", "policy", models.CharField(blank=True, default="", max_length=64)),
        migrations.RemoveConstraint("replica", NAME),
        migrations.AddConstraint(
            "replica",
            models.UniqueConstraint(
                fields=("run", "kind", "policy", "slot"),
                condition=~Q(state__in=["exited", "lost"]),
                name=NAME,
            ),
        ),
    ]
