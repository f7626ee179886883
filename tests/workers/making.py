"""Rows that tests of the workers start from, made through the services."""

from datetime import timedelta
from typing import Any

from django.db.models import Value
from django.db.models.functions import Now

from rollouts.models import Lease, Replica, ReplicaKind, Run
from rollouts.services.runs import life, policies, projects, replicas
from tests.factories import with_environments
from trainers.config import resolve

SMALL = {
    "kind": "rl",
    "max_steps": 4,
    "model.path": "/somewhere/some-model",
    "environments": [{"name": "reverse_text"}],
    "sampling.group_size": 2,
    "sampling.max_tokens": 8,
    "batch.batch_size": 4,
    "algorithm.max_async_level": 1,
    "workers.concurrency": 2,
    "workers.lease_s": 6.0,
}


def make_run(**overrides: Any) -> Run:
    """A pending run; `batch__batch_size=8` overrides `batch.batch_size`. Two groups of two make a batch."""
    environments = overrides.pop("environments", None)
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    resolved = resolve(overrides={**SMALL, **keys}, environ={})
    if environments is not None:
        resolved = with_environments(resolved, environments)
    return life.create(
        project=projects.ensure_default(), user=projects.ensure_admin(), resolved=resolved, actor="user:admin"
    )


def make_started_run(**overrides: Any) -> Run:
    """A run that is starting and whose initial version is live."""
    run = life.start(make_run(**overrides))
    policies.published(policies.register_initial(run, path="/somewhere/some-model"))
    run.refresh_from_db()
    return run


def expire(run: Run) -> None:
    """Let every lease of a run expire, as if its holders had been silent for long."""
    Lease.objects.filter(run=run).update(
        claimed_at=Now() - Value(timedelta(seconds=2)), expires_at=Now() - Value(timedelta(seconds=1))
    )


def make_server(run: Run, url: str, *, slot: int = 0, version: int = 0, policy: str = "") -> Replica:
    """A ready inference replica that answers at `url`, for one of `[[policies]]` or the run's own policy."""
    replica = replicas.create(run, kind=ReplicaKind.INFERENCE, policy=policy, slot=slot, launcher="local")
    replicas.address(replica, base_url=url)
    return replicas.ready(replica, loaded_version=None if policy else version)
