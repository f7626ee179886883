"""What was seen of workers that are jobs, and of their pools."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from django.db import models, transaction

from rollouts.models import KeptPool, WorkerJob

_Seen = TypeVar("_Seen", KeptPool, WorkerJob)
_MAX_WORDS = 500


def note_pools(pools: Iterable[KeptPool]) -> None:
    """Let the rows be these; what has not changed is not written."""
    seen = list(pools)
    for pool in seen:
        pool.complaint = pool.complaint[:_MAX_WORDS]
    _replace(KeptPool, seen)


def note_jobs(jobs: Iterable[WorkerJob]) -> None:
    """Let the rows be these; what has not changed is not written."""
    seen = list(jobs)
    for job in seen:
        job.why = job.why[:_MAX_WORDS]
    _replace(WorkerJob, seen)


def complain(words: str) -> None:
    """Note why none of the pools is kept."""
    KeptPool.objects.update(complaint=words[:_MAX_WORDS])


def _replace(model: type[_Seen], seen: Sequence[_Seen]) -> None:
    known = {row.pk: row for row in model._default_manager.all()}
    columns = [field.attname for field in model._meta.concrete_fields if not field.primary_key]
    changed = [row for row in seen if row.pk not in known or _values(row, columns) != _values(known[row.pk], columns)]
    gone = known.keys() - {row.pk for row in seen}
    with transaction.atomic():
        if changed:
            model._default_manager.bulk_create(
                changed,
                update_conflicts=True,
                unique_fields=[model._meta.pk.attname],
                update_fields=columns,
            )
        if gone:
            model._default_manager.filter(pk__in=gone).delete()


def _values(row: models.Model, columns: Sequence[str]) -> list[object]:
    return [getattr(row, column) for column in columns]
