"""Reads of groups and their rollouts. Token arrays are never touched here."""

from typing import NamedTuple

from django.db.models import Prefetch, Q, QuerySet, TextField, Value
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Coalesce

from rollouts.errors import NotFound
from rollouts.formats.atropos.extras import zeroed
from rollouts.models import BatchItem, GroupTokens, Purpose, Rollout, Run, ScoredGroup
from rollouts.selectors import curation
from rollouts.states import GroupState
from rollouts.storable import is_storable

_NEWEST = 200


def get(run: Run, key: str) -> ScoredGroup:
    """One group with its rollouts, the batch it was in and what people say of it. Raises NotFound."""
    found = ScoredGroup.objects.filter(run=run, key=key) if is_storable(key) else ScoredGroup.objects.none()
    group = curation.with_words(with_rollouts(found)).first()
    if group is None:
        raise NotFound(f"Run {run.key} has no group {key}.")
    return group


class GivenAdvantages(NamedTuple):
    """What the environment of a group said of its advantages."""

    per_token: bool = False
    """It sent one for each token."""
    zeroed: frozenset[int] = frozenset()
    """Positions of the rollouts that it set to 0."""


def given_advantages(group: ScoredGroup) -> GivenAdvantages:
    """One query."""
    tokens = GroupTokens.objects.filter(group=group).annotate(per_token=Q(advantages__isnull=False))
    said = tokens.values_list("per_token", "extras").first()
    return GivenAdvantages() if said is None else GivenAdvantages(said[0], zeroed(said[1]))


def with_rollouts(groups: QuerySet[ScoredGroup]) -> QuerySet[ScoredGroup]:
    """Load with the groups their rollouts (in order), and the step of their own run: a replay is one of another."""
    return groups.select_related("environment", "evaluation").prefetch_related(
        Prefetch("rollouts", queryset=Rollout.objects.order_by("index")),
        Prefetch("batch_items", queryset=BatchItem.objects.filter(replay=0).select_related("batch")),
    )


def fruitless(run: Run, at_least: int) -> ScoredGroup | None:
    """The newest training group, if it and all before it, `at_least` altogether, were of no use; else None.

    What a policy that was away left unanswered says nothing about that. Reads `at_least` groups.
    """
    settled = ScoredGroup.objects.filter(run=run, purpose=Purpose.TRAIN, settled_at__isnull=False)
    # Reasons without an error count: of NULL nobody could say that it begins otherwise.
    error = Coalesce(KeyTextTransform("error", "reason_params"), Value(""), output_field=TextField())
    away = Q(state=GroupState.FAILED, error__startswith="policy: PolicyUnavailable")
    newest = settled.alias(error=error).exclude(away).order_by("-settled_at")
    useless = (GroupState.FAILED, GroupState.FILTERED)
    last = newest.first()
    if last is None or last.state not in useless:  # nearly always
        return None
    states = list(newest.values_list("state", flat=True)[:at_least])
    return last if len(states) == at_least and all(state in useless for state in states) else None


def failing_environments(run: Run) -> set[str]:
    """Environments whose last group failed, among the newest groups of the run."""
    newest = ScoredGroup.objects.filter(run=run, settled_at__isnull=False).order_by("-settled_at")
    last: dict[str, str] = {}
    for name, state in newest.values_list("environment__name", "state")[:_NEWEST]:
        last.setdefault(name, state)
    return {name for name, state in last.items() if state == GroupState.FAILED}
