"""Environments: what can be played here, what each is, and where it was used."""

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from environments import registry
from environments.cards import card
from frontend.access import page
from rollouts.models import Role
from rollouts.selectors import runs


@page
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """Every environment by name: ours, bridges, and what was installed beside them."""
    return render(request, "environments/index.html", {"cards": [card(name) for name in registry.names()]})


@page
@require_safe
def environment(request: HttpRequest, name: str) -> HttpResponse:
    """One environment: its card, its arguments, and the user's runs that play it."""
    if name not in registry.names():
        raise Http404(f"There is no environment {name} here.")
    context = {
        "card": card(name),
        "runs": runs.that_play(request.user, name),
        "may_launch": runs.projects(request.user, Role.OPERATOR).exists(),
    }
    return render(request, "environments/environment.html", context)
