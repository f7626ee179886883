"""Queues: their list, one of them with its guideline and how far people agree."""

from typing import Any, cast

import msgspec
from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from frontend.access import actor, page
from frontend.pages.queues.form import QueueForm
from frontend.typed import listed, tell_refusal, written
from rollouts.errors import Conflict, Forbidden, Invalid
from rollouts.models import LabelQueue, Role, ScoredGroup
from rollouts.selectors import agreement, curation, label_queues, runs
from rollouts.services.curation import filling, filters, queues
from rollouts.storable import displayable

SHOWN = 200
SHOWN_UNDECIDED = 20


@page
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """The queues of one's projects, and a form to make one, filled in by a link (`?run=...&environment=...`)."""
    return _index(request, QueueForm(request.GET), status=200)


@page
@require_POST
def make(request: HttpRequest) -> HttpResponse:
    """Make the queue of the form. Needs the curator role in its project."""
    form = QueueForm(request.POST)
    project = runs.projects(request.user, Role.CURATOR).filter(slug=form.project).first()
    if project is None:
        raise Forbidden("A queue is made by a curator of its project, and you are none of this one.")
    try:
        queue = queues.create(project, actor=actor(request), **form.options())
    except (Invalid, Conflict) as error:
        form.errors = error.fields or {"name": error.message}
        tell_refusal(request, error.message)
        return _index(request, form, status=error.status)
    count = filling.fill(queue)
    so_far = f"{count or 'no'} item{'s' * (count != 1)} so far"
    messages.success(request, f"The queue was made and has {so_far}. It fills itself as groups are settled.")
    return HttpResponseRedirect(reverse("queue", args=[queue.key]))


@page
@require_safe
def queue(request: HttpRequest, queue_key: str) -> HttpResponse:
    """One queue: how far it is, by which guideline, and how far people agree."""
    return _queue(request, queue_key, {}, status=200)


@page
@require_POST
def guide(request: HttpRequest, queue_key: str) -> HttpResponse:
    """Give the queue a new version of its guideline. Needs the curator role."""
    found = label_queues.get(request.user, queue_key, Role.CURATOR)
    text = written(request.POST.get("guideline", ""))
    try:
        newest = queues.guide(found, text, actor=actor(request))
    except (Invalid, Conflict) as error:
        messages.error(request, error.message)
        return _queue(request, queue_key, {"guideline": text}, status=error.status)
    messages.success(request, f"Words are said by version {newest.version} from now on.")
    return HttpResponseRedirect(reverse("queue", args=[queue_key]))


@page
@require_POST
def assign(request: HttpRequest, queue_key: str) -> HttpResponse:
    """Say who alone is given items. Needs the curator role."""
    found = label_queues.get(request.user, queue_key, Role.CURATOR)
    people = request.POST.get("people", "")
    try:
        queues.assign(found, listed(people))
    except Invalid as error:
        messages.error(request, error.message)
        return _queue(request, queue_key, {"people": people}, status=error.status)
    messages.success(request, "Items are given to them from now on.")
    return HttpResponseRedirect(reverse("queue", args=[queue_key]))


@page
@require_POST
def close(request: HttpRequest, queue_key: str) -> HttpResponse:
    """Let the queue give out nothing any more. Needs the curator role."""
    queues.close(label_queues.get(request.user, queue_key, Role.CURATOR))
    messages.success(request, "The queue is closed. What was said stays.")
    return HttpResponseRedirect(reverse("queue", args=[queue_key]))


def _index(request: HttpRequest, form: QueueForm, *, status: int) -> HttpResponse:
    user = cast(User, request.user)
    context: dict[str, Any] = {
        "queues": label_queues.with_counts(label_queues.list_queues(user))[:SHOWN],
        "newest": SHOWN,
        "form": form,
        "projects": runs.projects(user, Role.CURATOR).order_by("name"),
    }
    return render(request, "queues/index.html", context, status=status)


def _queue(request: HttpRequest, queue_key: str, typed: dict[str, str], *, status: int) -> HttpResponse:
    """Its page, in whose forms stands what was typed there and refused."""
    row = label_queues.with_counts(label_queues.list_queues(request.user)).filter(
        pk=label_queues.get(request.user, queue_key).pk
    )
    found = row.get()
    chosen = msgspec.to_builtins(filters.filter_of(found))
    plain = msgspec.to_builtins(filters.QueueFilter())
    context = {
        "queue": found,
        "filter": {name: value for name, value in chosen.items() if value != plain[name]},
        "guidelines": found.guidelines.order_by("-version"),
        "agreement": agreement.shown_to(found, request.user),
        "hidden": agreement.HIDDEN,
        "decided": _decided(found),
        "people": label_queues.assigned(found),
        "typed": {name: displayable(text) for name, text in typed.items()},
        "may_adjudicate": found.words_per_item > 1 and not (found.is_blind and found.closed_at is None),
        "mine": label_queues.mine(found, request.user),
        "may_curate": runs.projects(request.user, Role.CURATOR).filter(pk=found.project_id).exists(),
    }
    return render(request, "queues/queue.html", context, status=status)


def _decided(queue: LabelQueue) -> dict[str, Any]:
    """How many items people decided, in which way, and the first of those that they did not."""
    found = curation.decided_in(queue)
    undecided = [each for each in found if each.how == "undecided"]
    shown = undecided[:SHOWN_UNDECIDED]
    groups = ScoredGroup.objects.select_related("run").in_bulk([each.group_id for each in shown])
    return {
        "by_majority": sum(each.how == "majority" for each in found),
        "adjudicated": sum(each.how == "adjudicated" for each in found),
        "undecided": len(undecided),
        "shown": [{"of": each, "group": groups[each.group_id]} for each in shown],
    }
