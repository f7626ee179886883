"""A session lets go of its record once its group has it: else every token of a program outside would be stored twice."""

from django.db import migrations, models
from django.db.models import Q

FUNCTION = """
CREATE FUNCTION rollouts_keep_record() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF pg_has_role((SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'USAGE') THEN
        RETURN NEW;
    END IF;
    IF NEW.finished_at = OLD.finished_at AND NEW.record IS NULL AND OLD.grouped_at IS NULL AND EXISTS (
        SELECT FROM rollouts_scoredgroup WHERE run_id = OLD.run_id AND key = OLD.group_key
    ) THEN
        RETURN NEW;
    END IF;
    RAISE insufficient_privilege USING MESSAGE = format('%s %s is closed: what it says stays', TG_TABLE_NAME, OLD.id);
END $$
"""
TRIGGER = (
    "CREATE TRIGGER keep_record BEFORE UPDATE OF finished_at, record ON rollouts_agentsession FOR EACH ROW "
    "WHEN (OLD.finished_at IS NOT NULL) EXECUTE FUNCTION {}()"
)
DROPPED = "DROP TRIGGER keep_record ON rollouts_agentsession"


class Migration(migrations.Migration):

    dependencies = [("rollouts", "0045_worker_due_at")]

    operations = [
        migrations.RunSQL(FUNCTION, "DROP FUNCTION rollouts_keep_record()"),
        migrations.RunSQL(DROPPED, TRIGGER.format("rollouts_keep")),
        migrations.RunSQL(TRIGGER.format("rollouts_keep_record"), DROPPED),
        migrations.RemoveConstraint("agentsession", "agentsession_record_exactly_when_finished"),
        migrations.AddConstraint(
            "agentsession",
            models.CheckConstraint(
                condition=Q(finished_at__isnull=True, record__isnull=True)
                | Q(finished_at__isnull=False, record__isnull=False)
                | Q(grouped_at__isnull=False, record__isnull=True),
                name="agentsession_record_until_its_group_has_it",
            ),
        ),
    ]
