"""What the database itself keeps as it is: rows in their last state, scores of settled groups, withdrawals of trust.

Rights go by column (`controlplane/grants.sql`); these go by row. Who owns the tables may mend by hand; the application,
whoever got hold of it, may not. No statement that the product makes comes so far as to call the function.
"""

from django.db import migrations

FUNCTION = """
CREATE FUNCTION rollouts_keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF pg_has_role((SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'USAGE') THEN
        RETURN NEW;
    END IF;
    RAISE insufficient_privilege USING MESSAGE = format('%s %s is closed: what it says stays', TG_TABLE_NAME, OLD.id);
END $$
"""
LAST_STATES = {
    "attempt": ["closed"],
    "batch": ["trained"],
    "checkpoint": ["deleted"],
    "environmentclient": ["left"],
    "evaluation": ["done", "expired"],
    "policyversion": ["superseded"],
    "replica": ["exited", "lost"],
    "run": ["finished", "stopped", "failed"],
    "scoredgroup": ["trained", "evaluated", "stale", "filtered", "failed", "rejected", "surplus"],
}
STATE = "state, state_at, reason_code, reason_params"
SCORES = (
    "problem_key, environment_version, lease_count, settled_at, rollout_count, token_count, reward_mean, reward_std, "
    "min_policy_version, max_policy_version"
)


def keep(name, table, columns, condition):
    """A trigger that keeps these columns of a row of which the condition holds."""
    return migrations.RunSQL(
        f"CREATE TRIGGER {name} BEFORE UPDATE OF {columns} ON rollouts_{table} FOR EACH ROW WHEN ({condition}) "
        "EXECUTE FUNCTION rollouts_keep()",
        f"DROP TRIGGER {name} ON rollouts_{table}",
    )


def one_of(states):
    return "OLD.state IN ({})".format(", ".join(f"'{state}'" for state in states))


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0014_addresses")]

    operations = [
        migrations.RunSQL(FUNCTION, "DROP FUNCTION rollouts_keep()"),
        *(keep("keep_last_state", table, STATE, one_of(states)) for table, states in LAST_STATES.items()),
        keep("keep_scores", "scoredgroup", SCORES, "OLD.settled_at IS NOT NULL"),
        keep("keep_withdrawal", "trust", "withdrawn_actor, withdrawn_at", "OLD.withdrawn_at IS NOT NULL"),
    ]
