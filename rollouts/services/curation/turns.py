"""Whose turn it is at which item of a queue: nobody meets another's item, and each item gets as many words as it wants.

take ─► a turn: one person, one item, for a while ─► answer ─► a label, and perhaps an act ─► the next
                            │                          └─ undo: the word is taken back, the item is yours again,
                            │                             until the queue is closed
                            └─ its time is over: somebody else may have the item
"""

from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet, Value
from django.db.models.functions import Now

from rollouts.errors import Conflict, Forbidden, Invalid, LeaseLost, NotFound, StateConflict
from rollouts.models import Act, Label, LabelQueue, LabelVerdict, QueueItem, QueueTurn, QueueUnit, ScoredGroup, Verb
from rollouts.selectors import label_queues
from rollouts.services.curation import acts, filling, labels, reviews

_LOOKS = 50
"""Items that are looked at before an empty answer: whoever is at one of them holds it for a moment only."""


def take(queue: LabelQueue, user: User) -> QueueTurn | None:
    """The person's turn: the newest that was begun and not answered, else one at the oldest item that wants a word of
    somebody else; None: there is none now. The caller has made sure that the user may curate.

    Locks the item's row. Raises StateConflict for a queue that is closed, Forbidden for one whose items are others'.
    """
    if queue.closed_at is not None:
        raise StateConflict(f"The queue {queue} was closed: nothing is given out any more.")
    if not label_queues.is_given_to(queue, user):
        raise Forbidden(f"The items of {queue} are given to others: ask a curator to be assigned.")
    begun = QueueTurn.objects.filter(item__queue=queue, item__is_open=True, person=user, label__isnull=True)
    for turn in begun.order_by("-taken_at"):
        if (renewed := _renew(queue, turn)) is not None:
            return renewed
    return _take_new(queue, user) or (_take_new(queue, user) if filling.fill(queue) else None)


def answer(turn: QueueTurn, *, user: User, actor: str, verdict: str, **said: Any) -> Label:
    """Say a word on the item of a turn; `said` is what `labels.say` takes besides. A reject does what the queue wants.

    The same turn again after an answer that was lost gives the label that is there. Whoever is at an item when its
    queue is closed still says their word, unless it is blind. Locks the item's row, and then its group. Raises Invalid,
    StateConflict where the queue takes no words any more, LeaseLost where others have taken the item since and it wants
    no more words.
    """
    with transaction.atomic():
        item = QueueItem.objects.select_for_update(of=("self",), no_key=True).get(pk=turn.item_id)
        turn.refresh_from_db()
        if turn.label is not None:
            return turn.label
        if not label_queues.takes_words(item.queue):
            raise StateConflict(f"The queue {item.queue} was closed, and its words may be read: it takes no others.")
        if not item.is_open or item.words + _others_at(item, turn.person).count() >= item.queue.words_per_item:
            raise LeaseLost("Your time at this item was over, and others have taken it. Go on with the next one.")
        if item.queue.unit == QueueUnit.PAIR and verdict not in (LabelVerdict.ACCEPT, LabelVerdict.SKIP):
            raise Invalid(
                "Of two rollouts one is preferred, or they are skipped.",
                fields={"verdict": "must be accept with a preference, or skip"},
            )
        guideline = item.queue.guidelines.order_by("-version").first()
        label = labels.say(
            item.group, user=user, actor=actor, verdict=verdict, **(said | _subject(item)), guideline=guideline
        )
        turn.label, turn.act = label, _do(item, label, user=user, actor=actor)
        turn.save(update_fields=["label", "act"])
        _count(item, item.words + 1)
    return label


def undo(queue: LabelQueue, user: User, *, actor: str) -> QueueTurn:
    """Take back the person's newest word in a queue, and what it did unless somebody else's word wants the same; the
    item is theirs again. Locks the item's row, its act, and then its group. Raises NotFound, StateConflict for a queue
    that is closed, and Conflict where the person takes it back twice at the same moment."""
    turns = QueueTurn.objects.filter(item__queue=queue, person=user, label__isnull=False)
    turn = turns.order_by("-label_id").first()
    if turn is None:
        raise NotFound("There is no word of yours in this queue to take back.")
    with transaction.atomic():
        item = QueueItem.objects.select_for_update(of=("self",), no_key=True).get(pk=turn.item_id)
        if turn.act is not None:  # to be undone below, which takes this first
            acts.lock(turn.act)
        # Whoever rejects the group at this moment has done so, or does it afterwards.
        ScoredGroup.objects.select_for_update(no_key=True).only("pk").get(pk=item.group_id)
        # Read behind the locks: somebody may have closed it while this waited for them.
        if item.queue.closed_at is not None:
            raise StateConflict(f"The queue {queue} was closed: what was said in it stays.")
        newest = turn.label_id
        turn.refresh_from_db()
        said, act = turn.label, turn.act
        if said is None or said.pk != newest:
            raise Conflict("You took that word back at the same moment.")
        withdrawn = LabelVerdict.WITHDRAWN
        labels.say(item.group, user=user, actor=actor, verdict=withdrawn, **_subject(item), guideline=said.guideline)
        turn.label, turn.act = None, None
        turn.save(update_fields=["label", "act"])
        if act is not None and not Act.objects.filter(undoes=act).exists() and not _hand_over(act, item):
            acts.undo(act, user=user, actor=actor)
        _count(item, item.words - 1)
        return _renew(queue, turn) or turn


def _do(item: QueueItem, label: Label, *, user: User, actor: str) -> Act | None:
    """What goes with a word: one act at most, so that undoing the word undoes all of it."""
    verb = Verb(item.queue.on_reject) if label.verdict == LabelVerdict.REJECT and item.queue.on_reject else None
    # What the queue rejects is held no longer. Were it let go first, it would not be held again when that is undone.
    act = None if verb == Verb.REJECT else reviews.conclude(item.group, label, user=user, actor=actor)
    if act is None and verb is not None:
        act = acts.perform(item.group.run, verb, [item.group_id], user=user, actor=actor, note=label.note)
    return act


def _hand_over(act: Act, item: QueueItem) -> bool:
    """Whether somebody else's reject, which found the group as it wanted it, stands: then the act is of that word."""
    others = QueueTurn.objects.filter(item__queue=item.queue_id, item__group=item.group_id, act__items__isnull=True)
    heir = others.filter(label__verdict=LabelVerdict.REJECT).order_by("label_id").first()
    if heir is None:
        return False
    heir.act = act
    heir.save(update_fields=["act"])
    return True


def _take_new(queue: LabelQueue, user: User) -> QueueTurn | None:
    mine = QueueTurn.objects.filter(item=OuterRef("pk"), person=user)
    wanting = QueueItem.objects.filter(~Exists(mine), queue=queue, is_open=True).order_by("id")
    full: list[int] = []
    for _ in range(_LOOKS):
        with transaction.atomic():
            locked = wanting.exclude(pk__in=full).select_for_update(of=("self",), skip_locked=True, no_key=True)
            item = locked.first()
            if item is None:
                return None
            # In a statement of its own: the one that locked the row may have read turns as they were before.
            item.refresh_from_db()
            is_new = not item.turns.filter(person=user).exists()
            if is_new and item.is_open and item.words + _others_at(item, user).count() < queue.words_per_item:
                turn = QueueTurn.objects.create(item=item, person=user, **_lease(queue))
                turn.refresh_from_db()
                return turn
            full.append(item.pk)
    return None


def _renew(queue: LabelQueue, turn: QueueTurn) -> QueueTurn | None:
    """The turn for another while, if nobody has taken its place meanwhile."""
    with transaction.atomic():
        item = QueueItem.objects.select_for_update(of=("self",), no_key=True).get(pk=turn.item_id)
        if not item.is_open or item.words + _others_at(item, turn.person).count() >= queue.words_per_item:
            return None
        QueueTurn.objects.filter(pk=turn.pk).update(**_lease(queue))
        turn.refresh_from_db()
        return turn


def _subject(item: QueueItem) -> dict[str, Any]:
    """What a word on an item is said of."""
    return {
        "rollout": None if item.rollout is None else item.rollout.index,
        "other": None if item.other is None else item.other.index,
    }


def _others_at(item: QueueItem, user: Any) -> QuerySet[QueueTurn]:
    """Turns of others at an item that are not over and not answered."""
    return item.turns.filter(label__isnull=True, expires_at__gt=Now()).exclude(person=user)


def _count(item: QueueItem, words: int) -> None:
    item.words, item.is_open = words, words < item.queue.words_per_item
    item.save(update_fields=["words", "is_open"])


def _lease(queue: LabelQueue) -> dict[str, Any]:
    return {"taken_at": Now(), "expires_at": Now() + Value(timedelta(seconds=queue.lease_s))}
