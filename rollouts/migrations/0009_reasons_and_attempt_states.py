"""Reasons as codes with parameters; the states of attempts and of environments from outside as those of other rows."""

import django.db.models.functions.datetime
from django.db import migrations, models


# What the store said of groups until now, as the codes of today: it is what ledgers count. (pattern, code, parameters
# in the order of the pattern's groups; those of numbers with a #)
SENTENCES = [
    ("^step ([0-9]+)$", "step", ["#step"]),
    ("^lag over ([0-9]+) steps at step ([0-9]+)$", "lagged", ["#limit", "#step"]),
    ("^zero advantage: all rewards are equal$", "zero_advantage", []),
    ("^no token was sampled by the policy: every loss mask is 0$", "nothing_sampled", []),
    ("^every rollout failed, the first with (.*)$", "all_failed", ["error"]),
    (
        "^quarantined: ([0-9]+) leases were lost while it was played, the last by (.*)$",
        "leases_lost",
        ["#leases", "holder"],
    ),
    ("^taken over: the lease of (.*) ended$", "lease_taken_over", ["holder"]),
    ("^the run was ([a-z]+)$", "run_ended", ["state"]),
    ("^every step has its batch$", "steps_covered", []),
    ("^its evaluation ended$", "evaluation_ended", []),
    ("^archived by a reset of attempt ([0-9]+)$", "reset", ["#number"]),
    ("^archived by a reset before attempt ([0-9]+)$", "reset_before", ["#number"]),
    ("^the trainer asked for more, which is how it acknowledges$", "more_asked_for", []),
    ("^it had arrived when attempt ([0-9]+) was reset$", "arrived_before_reset", ["#number"]),
    ("^the last batch was sent$", "last_batch_sent", []),
]
STATEFUL = ["batch", "checkpoint", "evaluation", "policyversion", "replica", "run", "scoredgroup"]
ORIGINS = ["launch form, TOML", "launch form", "command line", "request", "default"]
NAMED_ORIGINS = ["environment", "preset", "file", "run", "fork of"]


def give_codes(apps, schema_editor):
    for name in STATEFUL:
        schema_editor.execute(_codes(f"rollouts_{name}", "state_reason"), params=None)
    schema_editor.execute(_codes("rollouts_event", "reason"), params=None)


def _codes(table, column):
    """Every other sentence stays what it is: the text of the reason `text`."""
    codes, params = [], []
    for pattern, code, names in SENTENCES:
        is_it = f"WHEN {column} ~ '{pattern}' THEN"
        values = [
            f"'{name.lstrip('#')}', (regexp_match({column}, '{pattern}'))[{at}]{'::bigint' if name[0] == '#' else ''}"
            for at, name in enumerate(names, start=1)
        ]
        codes.append(f"{is_it} '{code}'")
        params.append(f"{is_it} jsonb_build_object({', '.join(values)})")
    return (
        f"UPDATE {table} SET reason_code = CASE {' '.join(codes)} ELSE 'text' END,"
        f" reason_params = CASE {' '.join(params)} ELSE jsonb_build_object('text', {column}) END"
        f" WHERE {column} <> ''"
    )


def give_sentences(apps, schema_editor):
    """The way back: codes that were sentences are what they say of themselves."""
    for name in [*STATEFUL, "event"]:
        column = "reason" if name == "event" else "state_reason"
        text = "coalesce(reason_params->>'text', reason_code || ' ' || reason_params::text)"
        schema_editor.execute(
            f"UPDATE rollouts_{name} SET {column} = left({text}, 500) WHERE reason_code <> ''", params=None
        )


def read_origins(apps, schema_editor):
    for run in apps.get_model("rollouts", "Run").objects.only("config_origins").iterator():
        run.config_origins = {key: _origin(text) for key, text in run.config_origins.items()}
        run.save(update_fields=["config_origins"])


def _origin(text):
    if text in ORIGINS:
        return [text, ""]
    kind = next((kind for kind in NAMED_ORIGINS if text.startswith(f"{kind} ")), None)
    return ["other", text] if kind is None else [kind, text.removeprefix(f"{kind} ")]


def write_origins(apps, schema_editor):
    for run in apps.get_model("rollouts", "Run").objects.only("config_origins").iterator():
        run.config_origins = {key: " ".join(filter(None, pair)) for key, pair in run.config_origins.items()}
        run.save(update_fields=["config_origins"])


GIVE_STATES = """
UPDATE rollouts_attempt SET
    state = CASE WHEN closed_at IS NOT NULL THEN 'closed' WHEN started_at IS NOT NULL THEN 'started' ELSE 'open' END,
    state_at = coalesce(closed_at, started_at, opened_at);
UPDATE rollouts_environmentclient SET
    state = CASE WHEN NOT is_connected THEN 'left' WHEN lapsed_at IS NOT NULL THEN 'lapsed' ELSE 'connected' END,
    state_at = coalesce(lapsed_at, registered_at);
UPDATE rollouts_environmentclient SET lapsed_at = NULL WHERE state = 'left';
"""
TAKE_STATES = "UPDATE rollouts_environmentclient SET is_connected = state <> 'left'"


class Migration(migrations.Migration):

    dependencies = [
        ('rollouts', '0008_token_values'),
    ]

    operations = [
        migrations.AddField(
            model_name='attempt',
            name='reason_code',
            field=models.CharField(blank=True, default='', max_length=32),
        ),
        migrations.AddField(
            model_name='attempt',
            name='reason_params',
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name='attempt',
            name='state',
            field=models.CharField(choices=[('open', 'OPEN'), ('started', 'STARTED'), ('closed', 'CLOSED')], default='open', max_length=16),
        ),
        migrations.AddField(
            model_name='attempt',
            name='state_at',
            field=models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
        ),
        migrations.AddField(
            model_name='batch',
            name='reason_code',
            field=models.CharField(blank=True, default='', max_length=32),
        ),
        migrations.AddField(
            model_name='batch',
            name='reason_params',
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name='checkpoint',
            name='reason_code',
            field=models.CharField(blank=True, default='', max_length=32),
        ),
        migrations.AddField(
            model_name='checkpoint',
            name='reason_params',
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name='environmentclient',
            name='reason_code',
            field=models.CharField(blank=True, default='', max_length=32),
        ),
        migrations.AddField(
            model_name='environmentclient',
            name='reason_params',
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name='environmentclient',
            name='state',
            field=models.CharField(choices=[('connected', 'CONNECTED'), ('lapsed', 'LAPSED'), ('left', 'LEFT')], default='connected', max_length=16),
        ),
        migrations.AddField(
            model_name='environmentclient',
            name='state_at',
            field=models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
        ),
        migrations.AddField(
            model_name='evaluation',
            name='reason_code',
            field=models.CharField(blank=True, default='', max_length=32),
        ),
        migrations.AddField(
            model_name='evaluation',
            name='reason_params',
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name='event',
            name='reason_code',
            field=models.CharField(blank=True, default='', max_length=32),
        ),
        migrations.AddField(
            model_name='event',
            name='reason_params',
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name='policyversion',
            name='reason_code',
            field=models.CharField(blank=True, default='', max_length=32),
        ),
        migrations.AddField(
            model_name='policyversion',
            name='reason_params',
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name='replica',
            name='reason_code',
            field=models.CharField(blank=True, default='', max_length=32),
        ),
        migrations.AddField(
            model_name='replica',
            name='reason_params',
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name='run',
            name='reason_code',
            field=models.CharField(blank=True, default='', max_length=32),
        ),
        migrations.AddField(
            model_name='run',
            name='reason_params',
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name='scoredgroup',
            name='reason_code',
            field=models.CharField(blank=True, default='', max_length=32),
        ),
        migrations.AddField(
            model_name='scoredgroup',
            name='reason_params',
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.RunPython(give_codes, give_sentences),
        migrations.RunPython(read_origins, write_origins),
        migrations.RunSQL(GIVE_STATES, TAKE_STATES),
        migrations.RemoveIndex(
            model_name='scoredgroup',
            name='group_ledger',
        ),
        migrations.RemoveField(
            model_name='batch',
            name='state_reason',
        ),
        migrations.RemoveField(
            model_name='checkpoint',
            name='state_reason',
        ),
        migrations.RemoveField(
            model_name='environmentclient',
            name='is_connected',
        ),
        migrations.RemoveField(
            model_name='evaluation',
            name='state_reason',
        ),
        migrations.RemoveField(
            model_name='event',
            name='reason',
        ),
        migrations.RemoveField(
            model_name='policyversion',
            name='state_reason',
        ),
        migrations.RemoveField(
            model_name='replica',
            name='state_reason',
        ),
        migrations.RemoveField(
            model_name='run',
            name='state_reason',
        ),
        migrations.RemoveField(
            model_name='scoredgroup',
            name='state_reason',
        ),
        migrations.AddIndex(
            model_name='scoredgroup',
            index=models.Index(fields=['run', 'state', 'reason_code'], name='group_ledger'),
        ),
        migrations.AddConstraint(
            model_name='attempt',
            constraint=models.CheckConstraint(condition=models.Q(('state__in', ['open', 'started', 'closed'])), name='attempt_state_known'),
        ),
        migrations.AddConstraint(
            model_name='attempt',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('started_at__isnull', True), ('state', 'open')), models.Q(('started_at__isnull', False), ('state', 'started')), ('state', 'closed'), _connector='OR'), name='attempt_started_at_once_started'),
        ),
        migrations.AddConstraint(
            model_name='attempt',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('closed_at__isnull', False), ('state__in', ['closed'])), models.Q(models.Q(('state__in', ['closed']), _negated=True), ('closed_at__isnull', True)), _connector='OR'), name='attempt_closed_at_exactly_when_closed'),
        ),
        migrations.AddConstraint(
            model_name='environmentclient',
            constraint=models.CheckConstraint(condition=models.Q(('state__in', ['connected', 'lapsed', 'left'])), name='client_state_known'),
        ),
        migrations.AddConstraint(
            model_name='environmentclient',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('lapsed_at__isnull', False), ('state__in', ['lapsed'])), models.Q(models.Q(('state__in', ['lapsed']), _negated=True), ('lapsed_at__isnull', True)), _connector='OR'), name='client_lapsed_at_exactly_when_lapsed'),
        ),
    ]
