"""Reads of what people say of groups and do with them, and of what was decided by it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from django.db import connection
from django.db.models import Case, Count, Exists, OuterRef, Prefetch, Q, QuerySet, When

from rollouts.errors import NotFound
from rollouts.models import Act, ActItem, Label, LabelQueue, LabelVerdict, QueueItem, Run, ScoredGroup
from rollouts.sql import load


def counting() -> QuerySet[Label]:
    """What counts of all that was said: no word that another supersedes, and none taken back."""
    # Not `superseded_by__isnull`, an outer join, of which the planner expects one row where there are thousands.
    later = Label.objects.filter(supersedes=OuterRef("pk"))
    return Label.objects.filter(~Exists(later)).exclude(verdict=LabelVerdict.WITHDRAWN)


def readable(said: QuerySet[Label]) -> QuerySet[Label]:
    """Of what was said what is in no blind queue that is open: whoever has still to say a word there must read none of
    it, wherever they look."""
    blind = LabelQueue.objects.filter(is_blind=True, closed_at__isnull=True)
    return said.filter(Q(queue__isnull=True) | ~Q(queue__in=blind))


def words(run: Run) -> QuerySet[Label]:
    """What counts of what was said in a run and may be read, newest first: nothing of a blind queue that is open."""
    return _readable().filter(run=run).select_related("group").order_by("-id")


def acts(run: Run) -> QuerySet[Act]:
    """What was done with groups of a run, newest first, with how many groups each changed (`groups`), and whether
    undoing it was broken off (`is_half_undone`)."""
    # By the items, as undoing does: acts are numbered before they come to their groups.
    since = ActItem.objects.filter(group=OuterRef("group"), pk__gt=OuterRef("pk"))
    left = ActItem.objects.filter(~Exists(since), act=OuterRef("pk"))
    done = Act.objects.filter(run=run).annotate(groups=Count("items")).order_by("-id")
    done = done.annotate(is_half_undone=Case(When(undone_by__isnull=False, then=Exists(left)), default=False))
    return done.select_related("undoes", "undone_by")


def act(run: Run, key: str) -> Act:
    """One act. Raises NotFound."""
    found = acts(run).filter(key=key).first()
    if found is None:
        raise NotFound(f"Run {run.key} has no act {key}.")
    return found


def acts_on(group: ScoredGroup) -> list[Act]:
    """What was done with one group, newest first."""
    return [item.act for item in group.act_items.select_related("act").order_by("-id")]


def with_words(groups: QuerySet[ScoredGroup]) -> QuerySet[ScoredGroup]:
    """Load what counts of what was said of the groups and may be read (`words`)."""
    return groups.prefetch_related(Prefetch("labels", queryset=_readable().order_by("id"), to_attr="words"))


@dataclass(frozen=True)
class Decision:
    """What counts of what people said of one thing: a group, a rollout of it, or two beside each other."""

    group_id: int
    rollout_id: int | None
    other_id: int | None
    rollout: int | None
    """Number in its group; None: the group itself."""
    other: int | None
    word: str
    """`accept` or `reject`, of a pair `first`, `other` or `tie`; empty: undecided."""
    how: Literal["adjudicated", "majority", "undecided"]
    actor: str = ""
    """Who adjudicated."""
    words: dict[str, int] = field(default_factory=dict)
    """Word -> how many people say so, but for who adjudicated."""

    @property
    def voices(self) -> int:
        """People who say something, but for who adjudicated."""
        return sum(self.words.values())


def decided(group: ScoredGroup) -> list[Decision]:
    """What was decided of a group and of what is in it: the adjudicated word if there is one, else the one that more
    than half of the people say, each by their newest word, else nothing. One query."""
    return _decisions([group.pk])


def decided_in(queue: LabelQueue) -> list[Decision]:
    """As `decided`, of every item of a queue of which somebody spoke, wherever they did. Two queries, and the whole of
    what was said of its groups."""
    items = set(QueueItem.objects.filter(queue=queue).values_list("group_id", "rollout_id", "other_id"))
    found = _decisions(list({group_id for group_id, _, _ in items}))
    return [each for each in found if (each.group_id, each.rollout_id, each.other_id) in items]


def _decisions(group_ids: Sequence[int]) -> list[Decision]:
    query = load("words_on_groups") + load("decided") + load("decisions")
    with connection.cursor() as cursor:
        cursor.execute(query, {"group_ids": list(group_ids)})
        rows = [(*row, json.loads(words or "{}")) for *row, words in cursor.fetchall()]
    return [Decision(*row) for row in rows]


def _readable() -> QuerySet[Label]:
    return readable(counting()).select_related("rollout", "other", "queue")
