"""The queries that run all the time read a few rows, on their indexes, in a run with a hundred thousand groups."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from rollouts.formation import Chosen, Demand
from rollouts.models import Run
from rollouts.selectors import events, groups, metrics, next_batch, pages, runs
from rollouts.services.batches import forming
from rollouts.services.groups import evaluations, leases, next_groups
from tests.rollouts import story

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

GROUPS = 100_000
BUDGET = 10_000
"""Rows that one query looks at, at most: the series of a metric has 5,000, a table of this run a hundred thousand."""


@pytest.fixture
def old_run() -> tuple[Run, int]:
    """A run with a long past: groups trained, events and metric points, and little that is still going on."""
    run, epoch = story.train(max_steps=10**6)
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO rollouts_scoredgroup (run_id, environment_id, key, purpose, problem_index, problem_key, state,
                reason_code, reason_params, state_at, lease_count, created_at, settled_at, rollout_count, token_count,
                reward_mean, min_policy_version, max_policy_version)
            SELECT %(run)s, (SELECT id FROM rollouts_runenvironment WHERE run_id = %(run)s), 'old-' || n, 'train', n,
                '', 'trained', 'step', jsonb_build_object('step', n / 2), now(), 1,
                now(), now() - n * interval '1 s', 2, 8, 0.5, n / 2, n / 2
            FROM generate_series(1, %(groups)s) AS n
            """,
            {"run": run.pk, "groups": GROUPS},
        )
        cursor.execute(
            """
            INSERT INTO rollouts_event (run_id, at, object_kind, object_id, from_state, to_state, reason_code,
                reason_params, actor)
            SELECT run_id, now(), 'scoredgroup', id, 'batched', 'trained', '', '{}', '' FROM rollouts_scoredgroup
            """
        )
        cursor.execute(
            """
            INSERT INTO rollouts_metricpoint (run_id, key, step, value, recorded_at)
            SELECT %s, 'k/' || key, step, step, now() - interval '1 day'
            FROM generate_series(1, 20) AS key, generate_series(1, 5000) AS step
            """,
            [run.pk],
        )
        for table in ("scoredgroup", "event", "metricpoint"):
            cursor.execute(f"ANALYZE rollouts_{table}")
    story.claim(run, 3)
    return run, epoch


def in_tokens(run: Run) -> Run:
    """The run as if its batches were measured in tokens."""
    run = story.fresh(run)
    run.config["batch"]["token_batch_size"] = 4000
    return run


QUESTIONS: dict[str, Callable[[Run, int], Any]] = {
    "claim": lambda run, epoch: story.claim(run),
    "capacity": lambda run, epoch: next_groups.capacity(run),
    "capacity in tokens": lambda run, epoch: next_groups.capacity(in_tokens(run)),
    "fetch in vain": lambda run, epoch: forming.fetch(run, epoch=epoch, step=0),
    "quarantine": lambda run, epoch: leases.quarantine_expired(run),
    "conclude": lambda run, epoch: evaluations.conclude(run),
    "newest groups": lambda run, epoch: list(pages.list_groups(run, limit=20)),
    "one group": lambda run, epoch: groups.get(run, "old-77777"),
    "newest events": lambda run, epoch: list(events.list_recent(run, limit=50)),
    "newest events of a page": lambda run, epoch: pages.list_events(run, limit=8),
    "events behind a number": lambda run, epoch: list(events.list_after(run, 7, limit=50)),
    "newest number of a page": lambda run, epoch: pages.seq(run),
    "health": lambda run, epoch: runs.health(run),
    "newest metrics": lambda run, epoch: metrics.latest(run, [f"k/{key}" for key in range(1, 21)]),
    "metric keys": lambda run, epoch: metrics.list_keys(run),
    "series": lambda run, epoch: metrics.series(run, ["k/3"]),
}


def test_what_is_asked_all_the_time_reads_a_few_rows(old_run: tuple[Run, int]) -> None:
    for name, ask in QUESTIONS.items():
        with CaptureQueriesContext(connection) as seen:
            ask(*old_run)
        check_budget(seen, name)


def test_the_ledger_counts_every_group_of_a_long_run(old_run: tuple[Run, int]) -> None:
    assert sum(line.groups for line in runs.ledger(old_run[0])) == GROUPS + 3


@pytest.fixture
def long_queue() -> Run:
    """A run with a hundred thousand groups that wait for a batch, of two sizes."""
    run = story.launch(batch__batch_size=64, sampling__group_size=8)
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO rollouts_scoredgroup (run_id, environment_id, key, purpose, problem_key, state, reason_code,
                reason_params, state_at, lease_count, created_at, settled_at, rollout_count, token_count, reward_mean,
                min_policy_version, max_policy_version)
            SELECT %(run)s, (SELECT id FROM rollouts_runenvironment WHERE run_id = %(run)s), 'waits-' || n, 'train', '',
                'ready', '', '{}', now(), 1, now(), now(), CASE WHEN n %% 10 = 0 THEN 4 ELSE 8 END, 8000, 0.5, 50, 50
            FROM generate_series(1, %(groups)s) AS n
            """,
            {"run": run.pk, "groups": GROUPS},
        )
        cursor.execute("ANALYZE rollouts_scoredgroup")
    return run


@pytest.mark.parametrize(
    "demand", [Demand(rollouts=64, exact=True), Demand(tokens=200_000)], ids=["rollouts", "tokens"]
)
def test_a_batch_is_chosen_from_a_few_index_entries_however_long_the_queue(long_queue: Run, demand: Demand) -> None:
    with CaptureQueriesContext(connection) as seen:
        assert isinstance(next_batch.preview(long_queue, 0, demand), Chosen)
    check_budget(seen, "preview")


_ONCE = "INSERT INTO rollouts_scoredgroup"
"""In a statement that cannot be done again, for it has the keys of its groups. It reads no table."""


def check_budget(seen: CaptureQueriesContext, name: str) -> None:
    """Do each statement that reads again, undone at once, and count what it looked at."""
    explained = 0
    for query in seen.captured_queries:
        sql: str = query["sql"]
        if not sql.startswith(("SELECT", "--", "WITH", "UPDATE", "DELETE")) or _ONCE in sql:
            continue
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}".replace("%", "%%"))
            [plan] = cursor.fetchone()[0]
            transaction.set_rollback(True)
        assert rows_read(plan["Plan"]) < BUDGET, f"{name}: {sql}\n{json.dumps(plan, indent=1)}"
        explained += 1
    assert explained, f"{name}: no statement was seen"


def rows_read(node: dict[str, Any]) -> int:
    """Rows that the scans of a plan looked at, also those they left out."""
    own = 0
    if "Scan" in node["Node Type"] and "Relation Name" in node:
        own = node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
    return int(own) + sum(rows_read(child) for child in node.get("Plans", []))
