"""Queues fill themselves whenever somebody asks for an item: with what their filter lets in, or people disagree on.

    groups whose state changed since ─► candidates, page by page ─► those that fit ─► items: groups, rollouts, or pairs
    words in another queue ─► items on which they differ ─► the same items here

A group is looked at again whenever its state has changed: a filter may ask for one that it reaches later than others.
An item is put in once and stays, whatever becomes of its group, and whatever is said of it elsewhere.
"""

import hashlib
from collections import defaultdict
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import connection, transaction
from django.db.models import Q
from django.db.models.functions import Now

from rollouts.models import COUNTING_REWARD, LabelQueue, QueueItem, QueueUnit, Rollout
from rollouts.services.curation import filters
from rollouts.sql import load

FILL = filters.PAGE
"""Groups that are looked at in one transaction, and disagreements that one puts in."""
MOST_PAGES = 25
"""That one call looks through where next to nothing fits: whoever waits hears that there is nothing, and may ask on."""
_OVERLAP = timedelta(seconds=60)
"""A group may become visible so long after the moment at which it says that it changed."""


class _Place(NamedTuple):
    """Where somebody is who looks through groups in the order in which they came into their states."""

    moment: datetime
    group_id: int


def fill(queue: LabelQueue) -> int:
    """Put in what came since it was filled last, oldest first, until there is something new, nothing left, or enough
    was looked through; return how many items are new. Locks the queue's row: of two who fill at the same moment one
    waits, and finds the rest."""
    place = None
    for _ in range(MOST_PAGES):
        with transaction.atomic():
            row = LabelQueue.objects.select_for_update(no_key=True, of=("self",)).get(pk=queue.pk)
            new, place = _fill_page(row, place) if row.source_id is None else (_fill_disputed(row), None)
        if new or place is None:
            return new
    return 0


def _fill_disputed(queue: LabelQueue) -> int:
    """Put in what people disagree on in another queue; return how many items are new."""
    with connection.cursor() as cursor:
        cursor.execute(load("disagreements"), {"queue_id": queue.pk, "source_id": queue.source_id, "most": FILL})
        return int(cursor.rowcount)


def _fill_page(queue: LabelQueue, place: _Place | None) -> tuple[int, _Place | None]:
    """Look at the groups behind a place, or where looking goes on; return how many items are new, and where the page
    ended if there may be more. What changed just now is looked at again: what changed before may show up later."""
    groups = filters.candidates(queue)
    if place is None and queue.filled_until is not None:
        place = _Place(queue.filled_until, queue.filled_group)
    if place is not None:
        later = Q(state_at__gt=place.moment) | Q(state_at=place.moment, pk__gt=place.group_id)
        groups = groups.filter(later, state_at__gte=place.moment)
    ordered = groups.annotate(now=Now()).order_by("state_at", "id")
    found = list(ordered.values_list("pk", "state_at", "now")[:FILL])
    if not found:
        return 0, None
    ids = filters.fitting(queue, [group_id for group_id, *_ in found])
    known = QueueItem.objects.filter(queue=queue, group__in=ids)
    before = known.count()
    QueueItem.objects.bulk_create(_items(queue, ids), ignore_conflicts=True)
    last_group, moment, now = found[-1]
    place = _Place(moment, last_group)
    queue.filled_until, queue.filled_group = min(place, _Place(now - _OVERLAP, 0))
    queue.save(update_fields=["filled_until", "filled_group"])
    return known.count() - before, place if len(found) == FILL else None


def _items(queue: LabelQueue, ids: list[int]) -> list[QueueItem]:
    """What groups that fit come to in a queue, in their order."""
    at = {group_id: place for place, group_id in enumerate(ids)}
    if queue.unit == QueueUnit.GROUP:
        return [QueueItem(queue=queue, group_id=group_id) for group_id in ids]
    if queue.unit == QueueUnit.PAIR:
        chosen = _pairs(ids)
        return [
            QueueItem(queue=queue, group_id=group_id, rollout_id=chosen[group_id][0], other_id=chosen[group_id][1])
            for group_id in ids
            if group_id in chosen
        ]
    members = filters.members(queue, ids).order_by("group_id", "index").values_list("group_id", "pk")
    ordered = sorted(members, key=lambda member: at[member[0]])
    return [QueueItem(queue=queue, group_id=group_id, rollout_id=rollout_id) for group_id, rollout_id in ordered]


def _pairs(ids: list[int]) -> dict[int, tuple[int, int]]:
    """Of each group with two scored rollouts or more the pair to compare, in the order of the group.

    The best beside the worst where rewards differ, in a match of the seat in which they differ most; where they are
    equal, and among several that are best or worst, those that are drawn: by their ids, so the same ones every time.
    """
    scored = Rollout.objects.filter(group__in=ids, reward__isnull=False).annotate(counting=COUNTING_REWARD)
    seats: defaultdict[int, defaultdict[str, list[tuple[float, bytes, int, int]]]]
    seats = defaultdict(lambda: defaultdict(list))
    for group_id, seat, reward, index, rollout_id in scored.values_list("group_id", "seat", "counting", "index", "pk"):
        seats[group_id][seat].append((reward or 0.0, _draw(rollout_id), index, rollout_id))
    pairs = {}
    for group_id, by_seat in seats.items():
        ordered = [sorted(played) for _, played in sorted(by_seat.items()) if len(played) > 1]
        if ordered:
            played = max(ordered, key=lambda played: played[-1][0] - played[0][0])
            (_, one), (_, other) = sorted((played[0][2:], played[-1][2:]))
            pairs[group_id] = (one, other)
    return pairs


def _draw(rollout_id: int) -> bytes:
    """By which equals are put in an order that is a matter of chance, and the same every time."""
    return hashlib.blake2b(str(rollout_id).encode(), digest_size=8).digest()
