"""The list of runs: home."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_safe

from frontend import query
from frontend.access import page
from rollouts.models import Role
from rollouts.selectors import pages, runs

FILTERS = [("", "All"), ("active", "Active"), ("finished", "Finished"), ("stopped", "Stopped"), ("failed", "Failed")]


@page
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """Every filter is in the query string, so a view of the list is a link. htmx gets the list alone."""
    state = request.GET.get("state", "")
    text = request.GET.get("q", "").strip()
    before = query.number(request, "before")
    found = pages.list_runs(request.user, text=text, state=state, before=before)
    context = {
        "found": found,
        "filters": [(name, label, found.counts[name]) for name, label in FILTERS],
        "state": state,
        "text": text,
        "is_first_page": before is None,
        "may_launch": runs.projects(request.user, Role.OPERATOR).exists(),
        "live_runs": "*",  # also of an older page: a search on it makes it the first one
    }
    is_fragment = bool(getattr(request, "htmx", False))
    response = render(request, "runs/_list.html" if is_fragment else "runs/index.html", context)
    # Else the back button would show the fragment that the browser cached under the same address.
    patch_vary_headers(response, ["HX-Request"])
    return response
