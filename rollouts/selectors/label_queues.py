"""Reads of queues: which somebody may see, how far each is, and whose turn it is."""

from dataclasses import dataclass
from typing import Any

from django.db.models import Count, F, Q, QuerySet
from django.db.models.functions import Now

from rollouts.errors import Forbidden, NotFound
from rollouts.models import LabelQueue, QueueTurn, Role
from rollouts.selectors import runs


def list_queues(user: Any) -> QuerySet[LabelQueue]:
    """The queues of a user's projects, open ones first."""
    queues = LabelQueue.objects.filter(project__in=runs.projects(user))
    return queues.select_related("project").order_by(F("closed_at").desc(nulls_first=True), "-id")


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
    """The newest that was begun and not answered, and whose time is not over."""
    words: int


def mine(queue: LabelQueue, user: Any) -> Mine:
    """The turn of somebody in a queue, and how many words they said there."""
    own = QueueTurn.objects.filter(item__queue=queue, person=user)
    begun = own.filter(label__isnull=True, item__is_open=True, expires_at__gt=Now())
    turn = (
        begun.select_related("item__group__run", "item__group__environment", "item__rollout")
        .order_by("-taken_at")
        .first()
    )
    return Mine(turn, own.filter(label__isnull=False).count())
