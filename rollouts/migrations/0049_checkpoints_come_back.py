"""A checkpoint that was deleted may be written again, so `deleted` is no last state any more (see 0015_closed_rows)."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0048_group_changed")]

    operations = [
        migrations.RunSQL(
            "DROP TRIGGER keep_last_state ON rollouts_checkpoint",
            "CREATE TRIGGER keep_last_state BEFORE UPDATE OF state, state_at, reason_code, reason_params "
            "ON rollouts_checkpoint FOR EACH ROW WHEN (OLD.state IN ('deleted')) EXECUTE FUNCTION rollouts_keep()",
        )
    ]
