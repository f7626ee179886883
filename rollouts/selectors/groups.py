"""Reads of groups and their rollouts. Token arrays are never touched here."""

from django.db.models import Exists, OuterRef, Prefetch, QuerySet

from rollouts.errors import NotFound
from rollouts.models import BatchItem, GroupTokens, Rollout, Run, ScoredGroup


def get(run: Run, key: str) -> ScoredGroup:
    """One group with its rollouts and the batches it was in, and whether it `has_token_advantages`. Raises NotFound."""
    groups = ScoredGroup.objects.filter(run=run, key=key)
    sent = GroupTokens.objects.filter(group=OuterRef("pk"), advantages__isnull=False)
    group = with_rollouts(groups.annotate(has_token_advantages=Exists(sent))).first()
    if group is None:
        raise NotFound(f"Run {run.key} has no group {key}.")
    return group


def with_rollouts(groups: QuerySet[ScoredGroup]) -> QuerySet[ScoredGroup]:
    """Load rollouts (in order) and batch membership with the groups."""
    return groups.select_related("environment", "evaluation").prefetch_related(
        Prefetch("rollouts", queryset=Rollout.objects.order_by("index")),
        Prefetch("batch_items", queryset=BatchItem.objects.select_related("batch")),
    )
