"""Reads of groups and their rollouts. Token arrays are never touched here."""

from django.db.models import Prefetch, QuerySet

from rollouts.errors import NotFound
from rollouts.models import BatchItem, GroupTokens, Rollout, Run, ScoredGroup
from rollouts.states import GroupState

_NEWEST = 200


def get(run: Run, key: str) -> ScoredGroup:
    """One group with its rollouts and the batches it was in. Raises NotFound."""
    group = with_rollouts(ScoredGroup.objects.filter(run=run, key=key)).first()
    if group is None:
        raise NotFound(f"Run {run.key} has no group {key}.")
    return group


def has_token_advantages(group: ScoredGroup) -> bool:
    """Whether its environment sent an advantage for each token."""
    return GroupTokens.objects.filter(group=group, advantages__isnull=False).exists()


def with_rollouts(groups: QuerySet[ScoredGroup]) -> QuerySet[ScoredGroup]:
    """Load rollouts (in order) and batch membership with the groups."""
    return groups.select_related("environment", "evaluation").prefetch_related(
        Prefetch("rollouts", queryset=Rollout.objects.order_by("index")),
        Prefetch("batch_items", queryset=BatchItem.objects.select_related("batch")),
    )


def failing_environments(run: Run) -> set[str]:
    """Environments whose last group failed, among the newest groups of the run."""
    newest = ScoredGroup.objects.filter(run=run, settled_at__isnull=False).order_by("-settled_at")
    last: dict[str, str] = {}
    for name, state in newest.values_list("environment__name", "state")[:_NEWEST]:
        last.setdefault(name, state)
    return {name for name, state in last.items() if state == GroupState.FAILED}
