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
from frontend.pages.run.rollouts.rollouts import split_prompt
from rollouts.errors import Conflict, Invalid, LeaseLost, NotFound, StateConflict
from rollouts.models import LabelQueue, QueueTurn, Role
from rollouts.selectors import curation, label_queues
from rollouts.services.curation import turns
from rollouts.storable import is_uuid

_SHOWN_WORDS = 20


@page
@require_safe
def annotate(request: HttpRequest, queue_key: str) -> HttpResponse:
    """The item that one has now; without one a button that takes the next. Needs the curator role."""
    queue = label_queues.get(request.user, queue_key, Role.CURATOR)
    mine = label_queues.mine(queue, request.user)
    context: dict[str, Any] = {
        "queue": queue,
        "mine": mine,
        "guideline": queue.guidelines.order_by("-version").first(),
    }
    if mine.turn is not None:
        context |= _item(queue, mine.turn)
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
    turn = QueueTurn.objects.filter(item__queue=queue, person=user, key=_uuid(form.get("turn", ""))).first()
    if turn is None:
        raise NotFound("This item is not yours.")
    score = form.get("score", "").strip()
    try:
        turns.answer(
            turn,
            user=user,
            actor=actor(request),
            verdict=form.get("verdict", ""),
            tags=form.getlist("tag"),
            note=form.get("note", "").strip(),
            score=float(score) if score else None,
            seconds=max(0.0, (timezone.now() - turn.taken_at).total_seconds()),
        )
    except ValueError:
        messages.error(request, "Nothing was stored: a score is a number.")
        return _on(queue)
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
    except StateConflict as error:
        messages.error(request, error.message)


def _item(queue: LabelQueue, turn: QueueTurn) -> dict[str, Any]:
    """What is shown of an item: its prompt once, its rollouts, and what others say unless the queue is blind."""
    group = turn.item.group
    rollouts = [turn.item.rollout] if turn.item.rollout else list(group.rollouts.order_by("index"))
    prompts = [split_prompt(rollout.messages) for rollout in rollouts]
    shared = prompts[0][0] if prompts else []
    is_shared = all(prompt == shared for prompt, _ in prompts)
    words = [] if queue.is_blind else curation.words(group.run).filter(group=group)[:_SHOWN_WORDS]
    members = [
        {"rollout": rollout, "messages": rest if is_shared else rollout.messages}
        for rollout, (_, rest) in zip(rollouts, prompts, strict=True)
    ]
    return {
        "turn": turn,
        "group": group,
        "run": group.run,
        "prompt": shared if is_shared else [],
        "members": members,
        "words": words,
    }


def _uuid(text: str) -> str:
    """A token as the database takes it; of anything else one that nobody has."""
    return text if is_uuid(text) else "00000000-0000-0000-0000-000000000000"


def _on(queue: LabelQueue) -> HttpResponse:
    return HttpResponseRedirect(reverse("queue-annotate", args=[queue.key]))
