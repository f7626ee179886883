"""The fleet: what of one's projects runs where, and how it is."""

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_safe

from frontend.access import page
from rollouts.selectors import machines


@page
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """All of it on one page; htmx gets what follows the fleet alone."""
    fleet = machines.fleet(request.user, idle_s=settings.IDLE_ALARM_S)
    context = {"fleet": fleet, "idle_alarm_s": settings.IDLE_ALARM_S, "live_runs": "*"}
    is_fragment = bool(getattr(request, "htmx", False))
    response = render(request, "fleet/_fleet.html" if is_fragment else "fleet/index.html", context)
    # Else the back button would show the fragment that the browser cached under the same address.
    patch_vary_headers(response, ["HX-Request"])
    return response
