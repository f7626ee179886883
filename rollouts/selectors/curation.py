"""Reads of what people say of groups and do with them."""

from django.db.models import Count, Prefetch, Q, QuerySet

from rollouts.errors import NotFound
from rollouts.models import Act, Label, LabelQueue, LabelVerdict, Run, ScoredGroup


def counting() -> QuerySet[Label]:
    """What counts of all that was said: no word that another supersedes, and none taken back."""
    return Label.objects.filter(superseded_by__isnull=True).exclude(verdict=LabelVerdict.WITHDRAWN)


def words(run: Run) -> QuerySet[Label]:
    """What counts of what was said in a run and may be read, newest first: nothing of a blind queue that is open."""
    return _readable().filter(run=run).select_related("group").order_by("-id")


def acts(run: Run) -> QuerySet[Act]:
    """What was done with groups of a run, newest first, with how many groups each changed (`groups`)."""
    done = Act.objects.filter(run=run).annotate(groups=Count("items")).order_by("-id")
    return done.select_related("undoes", "undone_by")


def act(run: Run, key: str) -> Act:
    """One act. Raises NotFound."""
    found = acts(run).filter(key=key).first()
    if found is None:
        raise NotFound(f"Run {run.key} has no act {key}.")
    return found


def acts_on(group: ScoredGroup) -> list[Act]:
    """What was done with one group, newest first."""
    return [item.act for item in group.act_items.select_related("act").order_by("-act_id")]


def with_words(groups: QuerySet[ScoredGroup]) -> QuerySet[ScoredGroup]:
    """Load what counts of what was said of the groups and may be read (`words`)."""
    return groups.prefetch_related(Prefetch("labels", queryset=_readable().order_by("id"), to_attr="words"))


def _readable() -> QuerySet[Label]:
    """Whoever has still to say a word in a blind queue must read none of it, wherever they look."""
    blind = LabelQueue.objects.filter(is_blind=True, closed_at__isnull=True)
    said = counting().filter(Q(queue__isnull=True) | ~Q(queue__in=blind))
    return said.select_related("rollout", "other")
