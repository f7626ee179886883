"""What is noted of workers that are jobs: as it was seen last, and written only where it has changed."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from rollouts.models import KeptPool, WorkerJob
from rollouts.services import worker_jobs

pytestmark = pytest.mark.django_db


def job(number: int, **columns: object) -> WorkerJob:
    return WorkerJob(token=f"worker-{number}", number=str(number), **{"state": "running", **columns})


def told() -> dict[str, tuple[str, str]]:
    return {row.number: (row.state, row.why) for row in WorkerJob.objects.all()}


def test_jobs_come_change_and_go() -> None:
    worker_jobs.note_jobs([job(1), job(2, state="pending", why="no node is free")])
    assert told() == {"1": ("running", ""), "2": ("pending", "no node is free")}
    worker_jobs.note_jobs([job(2), job(3)])
    assert told() == {"2": ("running", ""), "3": ("running", "")}
    worker_jobs.note_jobs([])
    assert told() == {}


def test_what_has_not_changed_is_not_written() -> None:
    worker_jobs.note_jobs([job(1), job(2)])
    with CaptureQueriesContext(connection) as asked:
        worker_jobs.note_jobs([job(1), job(2)])
    assert not [query["sql"] for query in asked if not query["sql"].startswith(("SELECT", "SAVEPOINT", "RELEASE"))]


def test_a_complaint_about_all_pools_is_there_until_they_are_seen_again() -> None:
    pools = [KeptPool(name=name, minimum=0, maximum=2) for name in ("a", "b")]
    worker_jobs.note_pools(pools)
    worker_jobs.complain("x" * 900)
    assert {row.complaint for row in KeptPool.objects.all()} == {"x" * 500}
    worker_jobs.note_pools(pools)
    assert {row.complaint for row in KeptPool.objects.all()} == {""}
