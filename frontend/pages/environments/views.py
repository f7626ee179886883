"""Environments: what can be played here, what each is, and where it was used."""

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from environments import registry
from environments.cards import card
from frontend import query
from frontend.access import page
from frontend.pages.environments import difficulty, health
from frontend.pages.environments.trial_form import blank_form
from rollouts.models import Role, RunKind
from rollouts.selectors import runs, trials


@page
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """Every environment by name: ours, bridges, and what was installed beside them."""
    return render(request, "environments/index.html", {"cards": [card(name) for name in registry.names()]})


@page
@require_safe
def environment(request: HttpRequest, name: str) -> HttpResponse:
    """One environment: its card, its arguments, the user's runs that play it, and a form to try it."""
    context = described(request, name)
    return render(request, "environments/environment.html", context)


def described(request: HttpRequest, name: str) -> dict[str, Any]:
    """The context of an environment's page. Raises Http404."""
    if name not in registry.names():
        raise Http404(f"There is no environment {name} here.")
    played_by = runs.that_play(request.user, name)
    may_launch = runs.projects(request.user, Role.OPERATOR).exists()
    played = health.played_rows(name, played_by)
    rows = [row for row in played if row.run.kind == RunKind.RL]
    wanted = query.number(request, "row")
    chosen = next((row for row in rows if row.pk == wanted), rows[0] if rows else None)
    return {
        "card": card(name),
        "runs": played_by,
        "may_launch": may_launch,
        "trial_form": blank_form(request, name, played_by) if may_launch else None,
        "health": health.of_rows(name, played),
        "difficulty_rows": rows,
        "difficulty_row": chosen,
        "difficulty": difficulty.of_row(chosen) if chosen else None,
        "trials": trials.newest(request.user, name),
    }
