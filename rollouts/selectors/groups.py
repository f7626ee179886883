"""Reads of groups and their rollouts. Token arrays are never touched here."""

from django.db.models import Prefetch, QuerySet

from rollouts.errors import NotFound
from rollouts.models import BatchItem, Rollout, Run, ScoredGroup
from rollouts.states import GroupState


def list_recent(
    run: Run,
    *,
    limit: int = 20,
    before_id: int | None = None,
    state: str | None = None,
    purpose: str | None = None,
) -> QuerySet[ScoredGroup]:
    """Settled groups with their rollouts, newest first. Two queries whatever the limit."""
    groups = ScoredGroup.objects.filter(run=run).exclude(state=GroupState.PLAYING)
    if before_id is not None:
        groups = groups.filter(id__lt=before_id)
    if state:
        groups = groups.filter(state=state)
    if purpose:
        groups = groups.filter(purpose=purpose)
    return with_rollouts(groups).order_by("-settled_at", "-id")[:limit]


def get(run: Run, key: str) -> ScoredGroup:
    """One group with its rollouts and the batches it was in. Raises NotFound."""
    group = with_rollouts(ScoredGroup.objects.filter(run=run, key=key)).first()
    if group is None:
        raise NotFound(f"Run {run.key} has no group {key}.")
    return group


def with_rollouts(groups: QuerySet[ScoredGroup]) -> QuerySet[ScoredGroup]:
    """Load rollouts (in order) and batch membership with the groups."""
    return groups.select_related("environment", "evaluation").prefetch_related(
        Prefetch("rollouts", queryset=Rollout.objects.order_by("index")),
        Prefetch("batch_items", queryset=BatchItem.objects.select_related("batch")),
    )
