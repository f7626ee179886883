"""One act on every group that a queue's filter lets in: looked at first, then confirmed, and undone as one."""

import hashlib
from collections.abc import Iterable
from typing import cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from frontend import numbers
from frontend.access import actor, page
from frontend.pages.run.rollouts.rollouts import of_group
from rollouts.errors import Conflict, ControlPlaneError
from rollouts.models import Role, Run, Verb
from rollouts.selectors import groups, label_queues
from rollouts.services.curation import acts, filters

SHOWN = 20
VERBS = [Verb.REJECT, Verb.EXCLUDE, Verb.RESTORE]


@page
@require_http_methods(["GET", "HEAD", "POST"])
def bulk(request: HttpRequest, queue_key: str) -> HttpResponse:
    """What an act would be on, and the act once it is confirmed; a refused one is looked at again, with its note. Needs
    the curator role."""
    queue = label_queues.get(request.user, queue_key, Role.CURATOR)
    given = request.POST if request.method == "POST" else request.GET
    verb = given.get("verb", "")
    if verb not in VERBS:
        messages.error(request, "Groups can be rejected, excluded or restored.")
        return HttpResponseRedirect(reverse("queue", args=[queue.key]))
    try:
        run, ids = filters.groups_of_run(queue, is_rejected=verb == Verb.RESTORE)
    except ControlPlaneError as error:
        messages.error(request, error.message)
        return HttpResponseRedirect(reverse("queue", args=[queue.key]))
    status = 200
    if request.method == "POST":
        try:
            return _perform(request, run, ids, Verb(verb))
        except ControlPlaneError as error:
            messages.error(request, error.message)
            status = error.status
    found = groups.with_rollouts(run.groups.filter(pk__in=ids[:SHOWN])).order_by("id")
    context = {
        "queue": queue,
        "run": run,
        "verb": Verb(verb),
        "count": len(ids),
        "digest": _digest(ids),
        "note": request.POST.get("note", ""),
        "groups": [of_group(group) for group in found],
    }
    return render(request, "queues/bulk.html", context, status=status)


def _perform(request: HttpRequest, run: Run, ids: list[int], verb: Verb) -> HttpResponse:
    """Raises Conflict where there are other groups now than were looked at."""
    if request.POST.get("groups") != _digest(ids):
        found = numbers.groups(len(ids))
        raise Conflict(f"The filter lets in {found} now, others than you looked at: look again, and confirm.")
    note = request.POST.get("note", "").strip()
    act = acts.perform(run, verb, ids, user=cast(User, request.user), actor=actor(request), note=note)
    messages.success(request, f"{verb.name.capitalize()}: {numbers.groups(act.items.count())} changed, as one act.")
    return HttpResponseRedirect(f"{reverse('run-people', args=[run.key])}#act-{act.key}")


def _digest(ids: Iterable[int]) -> str:
    """Which groups they are, in few characters."""
    return hashlib.sha256(",".join(map(str, sorted(ids))).encode()).hexdigest()
