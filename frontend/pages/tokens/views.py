"""One rollout of a step, token by token, as the optimizer saw it."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from frontend import query
from frontend.access import page
from frontend.pages.tokens.coloured import QUANTITIES, view
from rollouts.selectors import runs, token_values


@page
@require_safe
def tokens(request: HttpRequest, key: str, number: int) -> HttpResponse:
    """Tokens coloured by one quantity, with all figures of each."""
    run = runs.get(request.user, key)
    seen = token_values.get(run, number)
    context = {
        "run": run,
        "row": seen.row,
        "view": view(seen, request.GET.get("by", ""), query.number(request, "from")),
        "quantities": QUANTITIES.values(),
    }
    return render(request, "tokens/tokens.html", context)
