"""The queries that run all the time stay quick, and on their indexes, in a run with a hundred thousand groups."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from rollouts.formation import Chosen, Demand
from rollouts.models import Run
from rollouts.selectors import events, groups, metrics, next_batch, pages, runs
from rollouts.services import batches, evaluations, leases
from tests.rollouts import story

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

GROUPS = 100_000
BUDGET_S = 0.25
"""Far above what they take (milliseconds) and far below what reading the whole table takes on a busy machine."""


@pytest.fixture
def old_run() -> tuple[Run, int]:
    """A run with a long past: groups trained, events and metric points, and little that is still going on."""
    run, epoch = story.train(max_steps=10**6)
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO rollouts_scoredgroup (run_id, environment_id, key, purpose, problem_index, problem_key, state,
                state_reason, state_at, attempts, created_at, settled_at, rollout_count, token_count, reward_mean,
                min_policy_version, max_policy_version)
            SELECT %(run)s, (SELECT id FROM rollouts_runenvironment WHERE run_id = %(run)s), 'old-' || n, 'train', n,
                '', 'trained', 'step ' || n / 2, now(), 1, now(), now() - n * interval '1 s', 2, 8, 0.5, n / 2, n / 2
            FROM generate_series(1, %(groups)s) AS n
            """,
            {"run": run.pk, "groups": GROUPS},
        )
        cursor.execute(
            """
            INSERT INTO rollouts_event (run_id, at, object_kind, object_id, from_state, to_state, reason, actor)
            SELECT run_id, now(), 'scoredgroup', id, 'batched', 'trained', '', '' FROM rollouts_scoredgroup
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


QUESTIONS: dict[str, Callable[[Run, int], Any]] = {
    "capacity": lambda run, epoch: leases.capacity(run),
    "fetch in vain": lambda run, epoch: batches.fetch(run, epoch=epoch, step=0),
    "quarantine": lambda run, epoch: leases.quarantine_expired(run),
    "conclude": lambda run, epoch: evaluations.conclude(run),
    "newest groups": lambda run, epoch: list(pages.list_groups(run, limit=20)),
    "one group": lambda run, epoch: groups.get(run, "old-77777"),
    "newest events": lambda run, epoch: list(events.list_recent(run, limit=50)),
    "marks": lambda run, epoch: events.marks([run.pk]),
    "newest number of a page": lambda run, epoch: pages.seq(run),
    "health": lambda run, epoch: runs.health(run),
    "newest metrics": lambda run, epoch: metrics.latest(run, [f"k/{key}" for key in range(1, 21)]),
    "series": lambda run, epoch: metrics.series(run, ["k/3"]),
}


def test_nothing_that_runs_all_the_time_reads_a_whole_table(old_run: tuple[Run, int]) -> None:
    late: dict[str, float] = {}
    for name, ask in QUESTIONS.items():
        with CaptureQueriesContext(connection) as seen:
            began = time.perf_counter()
            ask(*old_run)
            took_s = time.perf_counter() - began
        if took_s > BUDGET_S:
            late[name] = took_s
        for query in seen.captured_queries:
            if query["sql"].startswith(("SELECT", "--", "WITH")):
                assert "Seq Scan on rollouts_scoredgroup" not in plan(query["sql"]), f"{name}: {query['sql']}"
                assert "Seq Scan on rollouts_event" not in plan(query["sql"]), f"{name}: {query['sql']}"
    assert late == {}


def plan(sql: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN " + sql.replace("%", "%%"))
        return "\n".join(line for (line,) in cursor.fetchall())


def test_claiming_and_the_ledger_stay_quick_in_a_long_run(old_run: tuple[Run, int]) -> None:
    run, _ = old_run
    began = time.perf_counter()
    assert len(story.claim(run)) == 1
    assert time.perf_counter() - began < BUDGET_S
    began = time.perf_counter()
    assert sum(line.groups for line in runs.ledger(run)) == GROUPS + 4
    assert time.perf_counter() - began < 1.0


@pytest.fixture
def long_queue() -> Run:
    """A run with a hundred thousand groups that wait for a batch, of two sizes."""
    run = story.launch(batch__batch_size=64, sampling__group_size=8)
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO rollouts_scoredgroup (run_id, environment_id, key, purpose, problem_key, state, state_reason,
                state_at, attempts, created_at, settled_at, rollout_count, token_count, reward_mean, min_policy_version,
                max_policy_version)
            SELECT %(run)s, (SELECT id FROM rollouts_runenvironment WHERE run_id = %(run)s), 'waits-' || n, 'train', '',
                'ready', '', now(), 1, now(), now(), CASE WHEN n %% 10 = 0 THEN 4 ELSE 8 END, 8000, 0.5, 50, 50
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
    for query in seen.captured_queries:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query['sql']}")
            [plan] = cursor.fetchone()[0]
        assert rows_read(plan["Plan"]) < 5_000


def rows_read(node: dict[str, Any]) -> int:
    """Rows that the scans of a plan looked at, also those they left out."""
    own = 0
    if "Scan" in node["Node Type"] and "Relation Name" in node:
        own = node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
    return int(own) + sum(rows_read(child) for child in node.get("Plans", []))
