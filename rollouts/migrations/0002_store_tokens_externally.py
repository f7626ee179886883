"""Keep token arrays out of line and uncompressed: ids and logprobs hardly compress, and reading them is the data path."""

from django.db import migrations

COLUMNS = ("token_ids", "loss_mask", "inference_logprobs")


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0001_create_store")]

    operations = [
        migrations.RunSQL(
            sql=[
                f"ALTER TABLE rollouts_rollouttokens ALTER COLUMN {column} SET STORAGE EXTERNAL"
                for column in COLUMNS
            ],
            reverse_sql=[
                f"ALTER TABLE rollouts_rollouttokens ALTER COLUMN {column} SET STORAGE EXTENDED"
                for column in COLUMNS
            ],
        ),
        # Leases and groups change state often: leave room on their pages so that updates stay heap-only, and clean early.
        migrations.RunSQL(
            sql=[
                "ALTER TABLE rollouts_lease SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02)",
                "ALTER TABLE rollouts_scoredgroup SET (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02)",
            ],
            reverse_sql=[
                "ALTER TABLE rollouts_lease RESET (fillfactor, autovacuum_vacuum_scale_factor)",
                "ALTER TABLE rollouts_scoredgroup RESET (fillfactor, autovacuum_vacuum_scale_factor)",
            ],
        ),
    ]
