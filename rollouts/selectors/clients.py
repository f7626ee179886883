"""Whose minimum share of a batch counts, among environments that take part over the Atropos-compatible API."""

import math
from datetime import timedelta

from django.db.models import QuerySet
from django.db.models.functions import Now

from rollouts.models import Attempt, EnvironmentClient
from rollouts.states import ClientState

ALLOCATION_LAPSE_S = 60
"""A client that was silent for longer holds no batch back by its minimum share, and takes nothing from others."""


def silent(attempt: Attempt) -> QuerySet[EnvironmentClient]:
    """Clients whose share is to lapse, as nothing was heard of them."""
    shares = _connected(attempt.pk).filter(min_batch_allocation__gt=0)
    return shares.filter(seen_at__lt=Now() - timedelta(seconds=ALLOCATION_LAPSE_S))


def heard(attempt_id: int) -> QuerySet[EnvironmentClient]:
    """Clients whose minimum share counts, if they have one: they take part, and were not silent for too long.

    The state alone does not tell: only a trainer that asks for batches lets the shares of the silent lapse, and a run
    with a trainer of ours has none that does.
    """
    return _connected(attempt_id).exclude(seen_at__lt=Now() - timedelta(seconds=ALLOCATION_LAPSE_S))


def minimums(attempt: Attempt) -> dict[int, int]:
    """Rollouts of every batch that must be of an environment, by the environment's id; together at most a batch."""
    counted = heard(attempt.pk).filter(min_batch_allocation__gt=0)
    shares: dict[int, float] = {}
    for environment_id, share in counted.values_list("environment_id", "min_batch_allocation"):
        shares[environment_id] = min(1.0, shares.get(environment_id, 0.0) + (share or 0.0))
    needs = {key: math.floor(attempt.batch_size * share) for key, share in shares.items()}
    total = sum(needs.values())
    if total > attempt.batch_size:
        needs = {key: need * attempt.batch_size // total for key, need in needs.items()}
    return {key: need for key, need in needs.items() if need > 0}


def _connected(attempt_id: int) -> QuerySet[EnvironmentClient]:
    return EnvironmentClient.objects.filter(attempt_id=attempt_id, state=ClientState.CONNECTED)
