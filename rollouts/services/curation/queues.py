"""Queues for people: a saved filter over the groups of a project, which fills itself as groups are settled.

    create ─► fill, whenever somebody asks for an item ─► items ─► turns (`services.curation.turns`) ─► labels

An item is put in once and stays, whatever becomes of its group. The filter is looked at when it is filled: changing it
would say of items that are there why they are not what they were put in for, so a queue with another filter is another.
"""

from datetime import timedelta
from typing import Annotated, Literal, get_args

import msgspec
from django.db import IntegrityError, transaction
from django.db.models import F, Max, Q, QuerySet
from django.db.models.functions import Mod, Now
from msgspec import Meta

from environments.types import ErrorKind
from rollouts.errors import Conflict, Invalid
from rollouts.models import (
    Guideline,
    LabelQueue,
    Project,
    QueueItem,
    QueueUnit,
    RejectEffect,
    Rollout,
    Run,
    ScoredGroup,
)
from rollouts.models.curation import MAX_TAG
from rollouts.models.queue import MAX_GUIDELINE, MOST_QUEUE_TAGS
from rollouts.states import GroupState
from rollouts.storable import UNSTORABLE, is_name, is_storable

FILL = 200
"""Groups that are put in at a time."""
MOST_AT_ONCE = 20_000
"""Groups that one act takes: somebody waits for it."""
_OVERLAP = timedelta(seconds=60)
"""A group may become visible so long after the moment at which it says it was settled."""
_MIXED = 2_654_435_761
"""Knuth's multiplier: neighbouring ids are drawn as if by chance, and the same ones every time."""


FilterState = Literal["held", "ready", "batched", "trained", "evaluated", "stale", "filtered", "failed", "surplus"]
FILTER_STATES: tuple[str, ...] = get_args(FilterState)
"""Of groups that somebody may look at."""


class QueueFilter(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Which groups a queue holds; of rollouts those whose group and who themselves fit."""

    run: str = ""
    """Key of one run; empty: every run of the project."""
    environment: str = ""
    state: FilterState | Literal[""] = ""
    min_reward: float | None = None
    max_reward: float | None = None
    """Of a group its mean."""
    equal_rewards: bool = False
    """Only groups whose rewards are all equal."""
    min_deviation: float | None = None
    """Only groups whose rewards differ: their standard deviation is at least this."""
    error: str = ""
    """Only where an episode failed with an error of this kind: `policy`, `tool`, ..."""
    truncated: bool = False
    """Only where a token budget ended an episode."""
    min_tokens: int | None = None
    max_tokens: int | None = None
    share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Drawn at random, the same ones every time."""


def create(
    project: Project,
    *,
    name: str,
    actor: str,
    unit: str = QueueUnit.GROUP,
    filter: QueueFilter | None = None,
    guideline: str = "",
    tags: list[str] | None = None,
    words_per_item: int = 1,
    is_blind: bool = False,
    on_reject: str = "",
    lease_s: int = 600,
) -> LabelQueue:
    """Make a queue with its first guideline. The caller has made sure that the user may curate. Raises Invalid and
    Conflict, for a second queue of the name."""
    chosen, tags = filter or QueueFilter(), list(dict.fromkeys(tags or []))
    fields = _faults(name, unit, tags, words_per_item, on_reject, lease_s, guideline) | _faults_of_filter(
        project, chosen
    )
    if fields:
        raise Invalid(
            f"No queue was made: {', '.join(f'{key} {fault}' for key, fault in fields.items())}.", fields=fields
        )
    try:
        with transaction.atomic():
            queue = LabelQueue.objects.create(
                project=project,
                name=name,
                unit=unit,
                filter=msgspec.to_builtins(chosen),
                tags=tags,
                words_per_item=words_per_item,
                is_blind=is_blind,
                on_reject=on_reject,
                lease_s=lease_s,
                actor=actor,
            )
            Guideline.objects.create(queue=queue, version=1, text=guideline, actor=actor)
    except IntegrityError:
        raise Conflict(f"The project has a queue named {name} already.") from None
    return queue


def guide(queue: LabelQueue, text: str, *, actor: str) -> Guideline:
    """Give a queue a new version of its guideline, by which words are said from now on. Raises Invalid, Conflict."""
    if fault := _guideline_fault(text):
        raise Invalid(f"The guideline {fault}.", fields={"guideline": fault})
    newest = queue.guidelines.aggregate(version=Max("version"))["version"]
    try:
        with transaction.atomic():
            return Guideline.objects.create(queue=queue, version=newest + 1, text=text, actor=actor)
    except IntegrityError:
        raise Conflict(
            "Somebody else changed the guideline at the same moment. Look at it, and change it again."
        ) from None


def close(queue: LabelQueue) -> None:
    """Give out no item any more; what was said stays."""
    LabelQueue.objects.filter(pk=queue.pk, closed_at__isnull=True).update(closed_at=Now())
    queue.refresh_from_db()


def fill(queue: LabelQueue) -> int:
    """Put in groups of the filter that were settled since it was filled last, oldest first, until there is something
    new or nothing left; return how many items are new. Locks the queue's row: of two who fill at the same moment one
    waits, and finds the rest."""
    new = 0
    is_more = True
    while is_more and not new:
        with transaction.atomic():
            row = LabelQueue.objects.select_for_update(no_key=True).get(pk=queue.pk)
            new, is_more = _fill_page(row)
    return new


def _fill_page(queue: LabelQueue) -> tuple[int, bool]:
    """Look at the next groups; return how many items are new, and whether there may be more to look at."""
    groups = matching(queue)
    if queue.filled_until is not None:
        later = Q(settled_at__gt=queue.filled_until) | Q(settled_at=queue.filled_until, pk__gt=queue.filled_group)
        groups = groups.filter(settled_at__gte=queue.filled_until).filter(later)
    ordered = groups.order_by("settled_at", "id").values_list("pk", "settled_at")
    found = [(group_id, moment) for group_id, moment in ordered[:FILL] if moment is not None]
    if not found:
        return 0, False
    ids = [group_id for group_id, _ in found]
    items = [QueueItem(queue=queue, group_id=group_id) for group_id in ids]
    if queue.unit == QueueUnit.ROLLOUT:
        members = _members(queue, ids).order_by("group_id", "index").values_list("group_id", "pk")
        items = [QueueItem(queue=queue, group_id=group_id, rollout_id=rollout_id) for group_id, rollout_id in members]
    known = QueueItem.objects.filter(queue=queue, group__in=ids)
    before = known.count()
    QueueItem.objects.bulk_create(items, ignore_conflicts=True)
    last_group, last_moment = found[-1]
    if len(found) == FILL:
        queue.filled_group, queue.filled_until = last_group, last_moment
    else:
        # The end, for now: what was being settled meanwhile says an earlier moment than that at which it can be seen.
        queue.filled_group, queue.filled_until = 0, last_moment - _OVERLAP
    queue.save(update_fields=["filled_until", "filled_group"])
    return known.count() - before, len(found) == FILL


def matching(queue: LabelQueue, *, with_rejected: bool = False) -> QuerySet[ScoredGroup]:
    """Every group that the filter of a queue lets in, whether it is in already or not."""
    chosen = filter_of(queue)
    groups = ScoredGroup.objects.filter(run__project=queue.project_id, settled_at__isnull=False)
    if chosen.run:
        groups = groups.filter(run__key=chosen.run)
    if chosen.environment:
        groups = groups.filter(environment__name=chosen.environment)
    if chosen.state:
        groups = groups.filter(state__in=[chosen.state, *([GroupState.REJECTED] if with_rejected else [])])
    elif not with_rejected:
        groups = groups.exclude(state=GroupState.REJECTED)
    if chosen.equal_rewards:
        groups = groups.filter(reward_std=0)
    if chosen.min_deviation is not None:
        groups = groups.filter(reward_std__gte=chosen.min_deviation)
    if queue.unit == QueueUnit.GROUP:
        groups = groups.filter(_between("reward_mean", chosen), _sized("token_count", chosen))
        groups = (
            groups.filter(pk__in=_members_of(chosen).values("group")) if chosen.error or chosen.truncated else groups
        )
    if chosen.share < 1:
        drawn = groups.annotate(drawn=Mod(F("id") * _MIXED, 2**32))
        groups = drawn.filter(drawn__lt=int(chosen.share * 2**32))
    return groups


def groups_of_run(queue: LabelQueue, *, is_rejected: bool = False) -> tuple[Run, list[int]]:
    """The run that a queue of groups is of, and the ids of all its groups that fit, for one act on them.

    ``is_rejected``: those that people withhold, in place of those that they do not. Raises Invalid for a queue of
    rollouts, of several runs, or of more groups than one act takes.
    """
    chosen = filter_of(queue)
    if queue.unit != QueueUnit.GROUP or not chosen.run:
        raise Invalid("One act is on groups of one run: make a queue of groups whose filter names the run.")
    groups = matching(queue, with_rejected=is_rejected)
    groups = groups.exclude(withheld="") if is_rejected else groups.filter(withheld="")
    ids = list(groups.order_by("id").values_list("pk", flat=True)[: MOST_AT_ONCE + 1])
    if len(ids) > MOST_AT_ONCE:
        raise Invalid(f"The filter lets in more than {MOST_AT_ONCE} groups: make one that lets in fewer.")
    return Run.objects.get(key=chosen.run), ids


def filter_of(queue: LabelQueue) -> QueueFilter:
    """The filter of a queue."""
    return msgspec.convert(queue.filter, QueueFilter)


def _members(queue: LabelQueue, group_ids: list[int]) -> QuerySet[Rollout]:
    """The rollouts of groups that fit the filter themselves."""
    chosen = filter_of(queue)
    return _members_of(chosen).filter(_between("reward", chosen), _sized("token_count", chosen), group__in=group_ids)


def _members_of(chosen: QueueFilter) -> QuerySet[Rollout]:
    rollouts = Rollout.objects.all()
    if chosen.error:
        rollouts = rollouts.filter(error_kind=chosen.error)
    if chosen.truncated:
        rollouts = rollouts.filter(stop_reason="length")
    return rollouts


def _between(column: str, chosen: QueueFilter) -> Q:
    least = Q() if chosen.min_reward is None else Q(**{f"{column}__gte": chosen.min_reward})
    return least if chosen.max_reward is None else least & Q(**{f"{column}__lte": chosen.max_reward})


def _sized(column: str, chosen: QueueFilter) -> Q:
    least = Q() if chosen.min_tokens is None else Q(**{f"{column}__gte": chosen.min_tokens})
    return least if chosen.max_tokens is None else least & Q(**{f"{column}__lte": chosen.max_tokens})


def _faults(
    name: str, unit: str, tags: list[str], words_per_item: int, on_reject: str, lease_s: int, guideline: str
) -> dict[str, str]:
    fields = {}
    if not 0 < len(name) <= 100 or not is_name(name) or not is_storable(name):
        fields["name"] = "must have 1 to 100 characters that can be seen"
    if unit not in QueueUnit.values:
        fields["unit"] = f"must be one of {', '.join(QueueUnit.values)}"
    if len(tags) > MOST_QUEUE_TAGS:
        fields["tags"] = f"must be at most {MOST_QUEUE_TAGS}: each has a key"
    elif not all(0 < len(tag) <= MAX_TAG and is_name(tag) and is_storable(tag) for tag in tags):
        fields["tags"] = f"must have 1 to {MAX_TAG} characters each that can be seen"
    if not 1 <= words_per_item <= 20:
        fields["words_per_item"] = "must be 1 to 20"
    if on_reject not in ("", *RejectEffect.values):
        fields["on_reject"] = f"must be empty or one of {', '.join(RejectEffect.values)}"
    if not 5 <= lease_s <= 86_400:
        fields["lease_s"] = "must be 5 to 86400"
    if fault := _guideline_fault(guideline):
        fields["guideline"] = fault
    return fields


def _faults_of_filter(project: Project, chosen: QueueFilter) -> dict[str, str]:
    fields = {}
    if chosen.run and not project.runs.filter(key=chosen.run).exists():
        fields["filter.run"] = "is no run of this project"
    if chosen.error and chosen.error not in [kind.value for kind in ErrorKind]:
        fields["filter.error"] = f"must be one of {', '.join(kind.value for kind in ErrorKind)}"
    return fields


def _guideline_fault(text: str) -> str:
    if len(text) > MAX_GUIDELINE:
        return f"must have at most {MAX_GUIDELINE} characters"
    return "" if is_storable(text) else UNSTORABLE
