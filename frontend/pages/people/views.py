"""What people say of a run's groups and do with them: the page with all of it, and the forms of a group's page."""

from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from frontend import numbers
from frontend.access import actor, page
from frontend.pages.group.views import show
from frontend.pages.run.people import curated
from frontend.pages.run.views import head
from rollouts.errors import Conflict, ControlPlaneError, Invalid
from rollouts.models import Role, ScoredGroup, Verb
from rollouts.selectors import curation, groups, runs
from rollouts.services.curation import acts, reviews

_DONE = {
    Verb.REJECT: "Rejected: it enters no batch any more, and exports leave it out.",
    Verb.EXCLUDE: "Excluded: exports leave it out; training goes on with it.",
    Verb.RESTORE: "Restored.",
}


@page
@require_safe
def people(request: HttpRequest, key: str) -> HttpResponse:
    """Everything that was said of the run's groups and done with them; of the words those that a line of the
    calibration counts, if a link asks for them."""
    run = runs.get(request.user, key)
    return render(request, "run/people/people.html", head(request, run, tab="people") | curated.of_run(request, run))


@page
@require_POST
def label(request: HttpRequest, key: str) -> HttpResponse:
    """Say what the form says of a group or of one of its rollouts. Needs the curator role."""
    run = runs.get(request.user, key, Role.CURATOR)
    group = groups.get(run, request.POST.get("group", ""))
    try:
        said = _said(request)
        reviews.say(group, user=cast(User, request.user), actor=actor(request), **said)
    except (Invalid, Conflict) as error:
        return show(request, run, group, refused=error.message)
    messages.success(request, "Taken back." if said["verdict"] == "withdrawn" else "Noted.")
    return _back(group)


@page
@require_POST
def act(request: HttpRequest, key: str) -> HttpResponse:
    """Reject, exclude or restore a group. Needs the curator role."""
    run = runs.get(request.user, key, Role.CURATOR)
    group = groups.get(run, request.POST.get("group", ""))
    verb, note = request.POST.get("verb", ""), request.POST.get("note", "").strip()
    try:
        if verb not in _DONE:
            raise Invalid("A group can be rejected, excluded or restored.")
        done = acts.perform(run, Verb(verb), [group.pk], user=cast(User, request.user), actor=actor(request), note=note)
    except ControlPlaneError as error:
        messages.error(request, error.message)
        return _back(group)
    if done.items.exists():
        group.refresh_from_db()
        is_late = verb == Verb.REJECT and group.state in ("batched", "trained")
        late = "Rejected too late: a batch has it already. Exports leave it out."
        messages.success(request, late if is_late else _DONE[Verb(verb)])
    else:
        messages.info(request, "Nothing changed: it is so already.")
    return _back(group)


@page
@require_POST
def undo(request: HttpRequest, key: str, act: str) -> HttpResponse:
    """Undo an act. Needs the curator role."""
    run = runs.get(request.user, key, Role.CURATOR)
    try:
        undoing = acts.undo(curation.act(run, act), user=cast(User, request.user), actor=actor(request))
    except Conflict as error:
        messages.error(request, error.message)
    else:
        messages.success(request, f"Undone, of {numbers.groups(undoing.items.count())}.")
    return HttpResponseRedirect(reverse("run-people", args=[run.key]))


def _said(request: HttpRequest) -> dict[str, Any]:
    """What the form says. Raises Invalid."""
    form = request.POST
    rollout, score = form.get("rollout", ""), form.get("score", "").strip()
    try:
        return {
            "verdict": form.get("verdict", ""),
            "rollout": int(rollout) if rollout else None,
            "score": float(score) if score else None,
            "tags": [tag.strip() for tag in form.get("tags", "").split(",") if tag.strip()],
            "note": form.get("note", "").strip(),
        }
    except ValueError:
        raise Invalid("Nothing was stored: a score is a number.") from None


def _back(group: ScoredGroup) -> HttpResponse:
    return HttpResponseRedirect(f"{reverse('group', args=[group.run.key, group.key])}#people")
