"""Reads of queues: which somebody may see, how far each is, and whose turn it is."""

import hashlib
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, F, Q, QuerySet
from django.db.models.functions import Now

from rollouts.errors import Forbidden, NotFound
from rollouts.models import LabelPreference, LabelQueue, QueueItem, QueueTurn, Role
from rollouts.selectors import runs


def list_queues(user: Any) -> QuerySet[LabelQueue]:
    """The queues of a user's projects, open ones first."""
    queues = LabelQueue.objects.filter(project__in=runs.projects(user))
    return queues.select_related("project", "source").order_by(F("closed_at").desc(nulls_first=True), "-id")


def with_counts(queues: QuerySet[LabelQueue]) -> QuerySet[LabelQueue]:
    """How many items each has (`total`), and how many of them want no more words (`done`)."""
    return queues.annotate(total=Count("items"), done=Count("items", filter=Q(items__is_open=False)))


def get(user: Any, key: str, at_least: Role = Role.VIEWER) -> LabelQueue:
    """One queue. Raises NotFound, and Forbidden for too low a role."""
    queue = list_queues(user).filter(key=key).first()
    if queue is None:
        raise NotFound(f"There is no queue {key}, or you may not see it.")
    if at_least != Role.VIEWER and not runs.projects(user, at_least).filter(pk=queue.project_id).exists():
        raise Forbidden(f"This needs the role {at_least.value} in the project {queue.project}.")
    return queue


@dataclass(frozen=True)
class Mine:
    """What somebody has in a queue."""

    turn: QueueTurn | None
    """The newest that was begun and not answered, whose time is not over and whose word would be taken."""
    words: int


def mine(queue: LabelQueue, user: Any) -> Mine:
    """The turn of somebody in a queue, and how many words they said there."""
    own = QueueTurn.objects.filter(item__queue=queue, person=user)
    begun = own.filter(label__isnull=True, item__is_open=True, expires_at__gt=Now())
    if not takes_words(queue):
        begun = begun.none()
    turn = (
        begun.select_related("item__group__run", "item__group__environment", "item__rollout", "item__other")
        .order_by("-taken_at")
        .first()
    )
    return Mine(turn, own.filter(label__isnull=False).count())


def takes_words(queue: LabelQueue) -> bool:
    """Whether somebody who is at an item may say their word. One that was closed gives none out, and takes that word
    all the same; but of a blind one everybody may read then what the others said."""
    return queue.closed_at is None or not queue.is_blind


def assigned(queue: LabelQueue) -> list[str]:
    """Who alone is given items, by name; nobody: every curator of the project is."""
    return list(queue.people.order_by("username").values_list("username", flat=True))


def is_given_to(queue: LabelQueue, user: Any) -> bool:
    """Whether somebody, who may curate, is given items of the queue."""
    people = list(queue.people.values_list("pk", flat=True))
    return not people or user.pk in people


def standing_left(item: QueueItem, user: Any) -> LabelPreference:
    """Which rollout of a pair stands left for somebody: drawn for each person and item, and the same every time.

    Whoever prefers a side then says nothing about rollouts, and two people see half of the pairs the other way round.
    """
    drawn = hashlib.blake2b(f"{item.pk}/{user.pk}".encode(), digest_size=1).digest()[0]
    return LabelPreference.FIRST if drawn % 2 else LabelPreference.OTHER
