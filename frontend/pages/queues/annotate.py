"""The annotator: one item, one screen, one key, and the next item is there."""

from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from frontend.access import actor, page
from frontend.pages.queues import showing
from frontend.typed import written
from rollouts.errors import Conflict, Forbidden, Invalid, LeaseLost, NotFound, StateConflict
from rollouts.models import LabelQueue, LabelVerdict, QueueTurn, Role
from rollouts.selectors import label_queues
from rollouts.services.curation import edits, labels, turns
from rollouts.storable import is_uuid


@page
@require_safe
def annotate(request: HttpRequest, queue_key: str) -> HttpResponse:
    """The item that one has now; else a button that takes the next, or whose they are. Needs the curator role."""
    queue = label_queues.get(request.user, queue_key, Role.CURATOR)
    mine = label_queues.mine(queue, request.user)
    context: dict[str, Any] = {
        "queue": queue,
        "mine": mine,
        "guideline": queue.guidelines.order_by("-version").first(),
        "others": [] if label_queues.is_given_to(queue, request.user) else label_queues.assigned(queue),
    }
    if mine.turn is not None:
        context |= showing.shown(queue, mine.turn, request.user)
    return render(request, "queues/annotate.html", context)


@page
@require_POST
def take(request: HttpRequest, queue_key: str) -> HttpResponse:
    """Take the next item. Needs the curator role."""
    queue = label_queues.get(request.user, queue_key, Role.CURATOR)
    _take(request, queue)
    return _on(queue)


@page
@require_POST
def say(request: HttpRequest, queue_key: str) -> HttpResponse:
    """Say the word of the form on the item of one's turn, and take the next. Needs the curator role."""
    queue = label_queues.get(request.user, queue_key, Role.CURATOR)
    user = cast(User, request.user)
    form = request.POST
    turns_of_mine = QueueTurn.objects.filter(item__queue=queue, person=user, key=_uuid(form.get("turn", "")))
    turn = turns_of_mine.select_related("item__rollout").first()
    if turn is None:
        raise NotFound("This item is not yours.")
    try:
        turns.answer(turn, user=user, actor=actor(request), **_said(request, turn))
    except (Invalid, Conflict) as error:
        messages.error(request, error.message)
        if not isinstance(error, LeaseLost):
            return _on(queue)
    _take(request, queue)
    return _on(queue)


@page
@require_POST
def undo(request: HttpRequest, queue_key: str) -> HttpResponse:
    """Take back one's newest word, and have its item again. Needs the curator role."""
    queue = label_queues.get(request.user, queue_key, Role.CURATOR)
    try:
        turns.undo(queue, cast(User, request.user), actor=actor(request))
    except (NotFound, Conflict) as error:
        messages.error(request, error.message)
    return _on(queue)


def _take(request: HttpRequest, queue: LabelQueue) -> None:
    try:
        if turns.take(queue, cast(User, request.user)) is None:
            messages.info(request, "There is nothing to look at now. The queue fills itself as groups are settled.")
    except (StateConflict, Forbidden) as error:
        messages.error(request, error.message)


def _said(request: HttpRequest, turn: QueueTurn) -> dict[str, Any]:
    """What the form says. Raises Invalid."""
    form = request.POST
    score, side = form.get("score", "").strip(), form.get("side", "")
    try:
        given = float(score) if score else None
    except ValueError:
        raise Invalid("Nothing was stored: a score is a number.") from None
    said: dict[str, Any] = {
        "verdict": LabelVerdict.ACCEPT.value if side else form.get("verdict", ""),
        "tags": form.getlist("tag"),
        "note": written(form.get("note", "")),
        "score": given,
        # A page may stand open for days: that is no reason to refuse a word.
        "seconds": min(max(0.0, (timezone.now() - turn.taken_at).total_seconds()), labels.MAX_SECONDS),
    }
    if side:
        said["preference"] = showing.preference_of(side, turn.item, request.user)
    if "edited" in form and turn.item.rollout is not None:
        said["edited"] = edits.with_last_reply(turn.item.rollout.messages, form["edited"], form.get("thoughts"))
    return said


def _uuid(text: str) -> str:
    """A token as the database takes it; of anything else one that nobody has."""
    return text if is_uuid(text) else "00000000-0000-0000-0000-000000000000"


def _on(queue: LabelQueue) -> HttpResponse:
    return HttpResponseRedirect(reverse("queue-annotate", args=[queue.key]))
