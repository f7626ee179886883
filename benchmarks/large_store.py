"""A store of its own with as many groups as somebody wants to measure with, filled by SQL in a minute or two."""

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

_FILLED = tuple(f"rollouts_{name}" for name in ("scoredgroup", "rollout", "grouptokens", "label", "batch", "batchitem"))
_FILL = """
INSERT INTO rollouts_scoredgroup (
    run_id, environment_id, environment_version, key, purpose, evaluation_id, problem_index, problem_key, state,
    state_at, reason_code, reason_params, lease_count, created_at, settled_at, rollout_count, token_count, reward_mean,
    reward_std, scored_count, solved_count, min_policy_version, max_policy_version, withheld
)
SELECT %(run)s, %(environment)s, '1', 'm' || n, CASE WHEN is_eval THEN 'eval' ELSE 'train' END,
       CASE WHEN is_eval THEN %(evaluation)s::bigint END, CASE WHEN is_eval THEN n END, 'p' || n, state, now(),
       '', '{}', 1, now(), now(), %(size)s, %(size)s * 200, n %% 11 / 10.0, n %% 3 / 4.0, %(size)s,
       %(size)s / 2, n / 1000, n / 1000, ''
FROM generate_series(1, %(groups)s) AS n
CROSS JOIN LATERAL (SELECT (%(states)s::varchar[])[1 + n %% %(kinds)s] AS state) AS it
CROSS JOIN LATERAL (SELECT state = 'evaluated' AS is_eval) AS found;

INSERT INTO rollouts_rollout (
    group_id, index, seat, reward, metrics, messages, stop_reason, error_kind, token_count, trained_token_count,
    dispatch_policy_version, first_policy_version, last_policy_version, replica, worker, generation_s
)
SELECT scored.id, i, '', i / %(size)s::float, '{}',
       jsonb_build_array(
           jsonb_build_object('role', 'system', 'content', 'You are a calculator. Think, then answer.'),
           jsonb_build_object('role', 'user', 'content', 'What is ' || scored.id || ' plus ' || i || '?'),
           jsonb_build_object('role', 'assistant', 'content', said.text, 'reasoning_content', left(said.text, 200)),
           jsonb_build_object('role', 'user', 'content', 'Are you sure?'),
           jsonb_build_object('role', 'assistant', 'content', 'Yes: ' || scored.id + i)
       ), 'stop', '', 200, 120, scored.min_policy_version, scored.min_policy_version, scored.max_policy_version, 'r',
       'w', 1
FROM rollouts_scoredgroup AS scored
CROSS JOIN generate_series(0, %(size)s - 1) AS i
CROSS JOIN LATERAL (
    SELECT string_agg(md5(scored.id::text || i || k), ' ') AS text FROM generate_series(1, 20) AS k
) AS said
WHERE scored.run_id = %(run)s AND starts_with(scored.key, 'm');

INSERT INTO rollouts_grouptokens (group_id, lengths, token_ids, loss_mask, inference_logprobs)
SELECT id, %(lengths)s, %(ids)s, %(mask)s, %(ids)s FROM rollouts_scoredgroup
WHERE run_id = %(run)s AND starts_with(key, 'm');
"""
"""Conversations of five messages and about 1 kB, of 200 tokens each."""


@contextmanager
def opened(kept: Path | None = None) -> Iterator[Path]:
    """A directory for files, beside a store of its own, migrated; ``kept``: a home in which it stays."""
    with tempfile.TemporaryDirectory(prefix="rollyard-large-") as directory:
        root = Path(directory)
        root.chmod(0o711)  # PostgreSQL, which is not root, passes through it
        os.environ["ROLLYARD_HOME"] = str(kept or root / "home")
        os.environ["ROLLYARD_SECRET_KEY"] = "a key for a benchmark, which signs nothing of value"
        os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
        for name in ("DATABASE_URL", "REDIS_URL"):
            os.environ.pop(name, None)
        import django

        django.setup()
        from django.conf import settings
        from django.core.management import call_command

        from controlplane.up import embedded

        settings.HOME.create()
        program = embedded.prepare_postgres(settings.HOME)
        with embedded.serving(settings.HOME, program, embedded.postgres_answers):
            call_command("migrate", verbosity=0)
            yield root


def create_run() -> Any:
    """A run that nobody plays."""
    from rollouts.services.runs import life, projects
    from trainers.config import resolve

    project, user = projects.ensure_default(), projects.ensure_admin()
    return life.create(project=project, user=user, resolved=resolve("reverse-text-rl"), actor="benchmark")


def fill(run: Any, groups: int, *, size: int, states: Sequence[str] = ("ready",)) -> None:
    """Give a run so many groups of ``size`` rollouts, in these states in turn, of its one environment. What is
    `evaluated` is so for an evaluation of version 0."""
    import numpy as np
    from django.db import connection

    from rollouts.models import Evaluation
    from rollouts.states import EvaluationState, GroupState

    mask = np.zeros((size, 200), np.uint8)
    mask[:, 60:170] = 1
    mask[:, 180:190] = 1
    environment, evaluation, now = run.environments.get(), None, run.created_at
    if GroupState.EVALUATED in states:
        closed = {"state": EvaluationState.DONE, "problems": groups, "deadline_at": now, "finished_at": now}
        evaluation = Evaluation.objects.create(run=run, environment=environment, version=0, **closed).pk
    values = {
        "run": run.pk,
        "environment": environment.pk,
        "evaluation": evaluation,
        "groups": groups,
        "size": size,
        "states": list(states),
        "kinds": len(states),
        "lengths": np.full(size, 200, "<u4").tobytes(),
        "ids": np.zeros(size * 200, "<u4").tobytes(),
        "mask": mask.tobytes(),
    }
    with connection.cursor() as cursor:
        for statement in filter(str.strip, _FILL.split(";\n")):
            cursor.execute(statement, values)
    analyze()


def label(ids: Iterable[int]) -> None:
    """Let somebody say of groups, one by one, that they would reject them. Nothing is done with the groups."""
    from django.contrib.auth.models import User

    from rollouts.models import ScoredGroup
    from rollouts.services.curation import labels

    user = User.objects.get(username="admin")
    for group in ScoredGroup.objects.filter(pk__in=list(ids)):
        labels.say(group, user=user, actor="user:admin", verdict="reject")


def analyze() -> None:
    """Count what is there, as a store does by itself when it is left alone for a minute."""
    from django.conf import settings

    with psycopg.connect(settings.HOME.owner_database_url, autocommit=True) as connection:
        connection.execute(f"VACUUM ANALYZE {', '.join(_FILLED)}")
