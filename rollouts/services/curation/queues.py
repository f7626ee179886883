"""Queues for people: what they hold, who is given it, and by which guideline.

    create ─► fill, whenever somebody asks for an item (`filling`) ─► turns (`turns`) ─► labels (`labels`)

The filter of a queue is looked at when it is filled: changing it would say of items that are there why they are not
what they were put in for, so a queue with another filter is another.
"""

from collections.abc import Sequence

import msgspec
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import Max
from django.db.models.functions import Now

from rollouts.errors import Conflict, Invalid
from rollouts.models import Guideline, LabelQueue, Project, QueueUnit, RejectEffect, Role
from rollouts.models.curation import MAX_TAG
from rollouts.models.queue import MAX_GUIDELINE, MOST_QUEUE_TAGS
from rollouts.selectors import runs
from rollouts.services.curation import filters
from rollouts.services.curation.filters import QueueFilter
from rollouts.storable import UNSTORABLE, is_name, is_storable

MOST_PEOPLE = 100


def create(
    project: Project,
    *,
    name: str,
    actor: str,
    unit: str = QueueUnit.GROUP,
    filter: QueueFilter | None = None,
    source: str = "",
    guideline: str = "",
    tags: list[str] | None = None,
    words_per_item: int = 1,
    is_blind: bool = False,
    on_reject: str = "",
    lease_s: int = 600,
    people: Sequence[str] = (),
) -> LabelQueue:
    """Make a queue with its first guideline. The caller has made sure that the user may curate.

    ``source`` is the key of another queue: this one then holds what people disagree on there, in place of what a
    filter lets in, and its words decide. ``people`` are usernames: they alone are given items. Raises Invalid, and
    Conflict for a second queue of the name.
    """
    chosen, tags = filter or QueueFilter(), list(dict.fromkeys(tags or []))
    disputed = project.label_queues.filter(key=source).first() if source and is_storable(source) else None
    if disputed is not None:
        unit = disputed.unit
    given, unknown = _curators(project, people)
    fields = _faults(name, unit, tags, words_per_item, on_reject, lease_s, guideline) | filters.faults(project, chosen)
    if source:
        fields |= _faults_of_source(disputed, chosen, words_per_item, is_blind=is_blind)
    if unknown:
        fields["people"] = unknown
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
                source=disputed,
                tags=tags,
                words_per_item=words_per_item,
                is_blind=is_blind,
                on_reject=on_reject,
                lease_s=lease_s,
                actor=actor,
            )
            queue.people.set(given)
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


def assign(queue: LabelQueue, people: Sequence[str]) -> None:
    """Give items of a queue to these people alone from now on, by their usernames; to nobody: to every curator of the
    project. Whoever is at an item may still answer it. Raises Invalid for somebody who is no curator of the project."""
    given, unknown = _curators(queue.project, people)
    if unknown:
        raise Invalid(f"Nobody was assigned: people {unknown}.", fields={"people": unknown})
    with transaction.atomic():
        queue.people.set(given)


def close(queue: LabelQueue) -> None:
    """Give out no item any more, and take nothing back: what was said stays."""
    LabelQueue.objects.filter(pk=queue.pk, closed_at__isnull=True).update(closed_at=Now())
    queue.refresh_from_db()


def _curators(project: Project, names: Sequence[str]) -> tuple[list[User], str]:
    """The people of these names, or what is wrong with them."""
    names = list(dict.fromkeys(names))
    if len(names) > MOST_PEOPLE:
        return [], f"must be at most {MOST_PEOPLE}"
    found = User.objects.filter(username__in=[name for name in names if is_storable(name)], is_active=True)
    able = [user for user in found if runs.projects(user, Role.CURATOR).filter(pk=project.pk).exists()]
    missing = sorted(set(names) - {user.username for user in able})
    # Of somebody elsewhere it says what it says of nobody: who there is, is no business of this project.
    return able, f"must be curators of the project: {', '.join(missing)[:200]} is none" if missing else ""


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
    elif on_reject and unit == QueueUnit.PAIR:
        fields["on_reject"] = "must be empty in a queue of pairs, of which nothing is rejected"
    if not 5 <= lease_s <= 86_400:
        fields["lease_s"] = "must be 5 to 86400"
    if fault := _guideline_fault(guideline):
        fields["guideline"] = fault
    return fields


def _faults_of_source(
    source: LabelQueue | None, chosen: QueueFilter, words_per_item: int, *, is_blind: bool
) -> dict[str, str]:
    fields = {}
    if source is None:
        fields["source"] = "is no queue of this project"
    elif source.is_blind and source.closed_at is None:
        # Its people have still to say their own words, and here the words of others are shown.
        fields["source"] = "is blind and open: what people say there is shown to nobody before it is closed"
    elif source.words_per_item < 2:
        fields["source"] = "wants one word on each item, so nobody can disagree there"
    if chosen != QueueFilter():
        fields["filter"] = "must be empty: the queue holds what people disagree on in the other one"
    if words_per_item != 1:
        fields["words_per_item"] = "must be 1 where a word decides"
    if is_blind:
        fields["is_blind"] = "must not be set where the words of others are shown"
    return fields


def _guideline_fault(text: str) -> str:
    if len(text) > MAX_GUIDELINE:
        return f"must have at most {MAX_GUIDELINE} characters"
    return "" if is_storable(text) else UNSTORABLE
