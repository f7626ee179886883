"""Whatever it is called: of what was promised twice, under two names of the machine, the first run keeps it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0051_event_shown_by_run")]

    operations = [
        migrations.RemoveConstraint("placement", "placement_promised_once"),
        migrations.RunSQL(
            """
            UPDATE rollouts_placement AS later SET released_at = now()
            FROM rollouts_placement AS first
            WHERE later.released_at IS NULL AND first.released_at IS NULL
                AND (first.kind, first.unit) = (later.kind, later.unit) AND first.id < later.id
            """,
            migrations.RunSQL.noop,
        ),
        migrations.AddConstraint(
            "placement",
            models.UniqueConstraint(
                condition=models.Q(("released_at__isnull", True)),
                fields=("kind", "unit"),
                name="placement_promised_once",
            ),
        ),
    ]
