"""One rollout, token by token: as the optimizer saw it at a step, and as it was stored."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from frontend import query
from frontend.access import page
from frontend.pages.tokens import raw as raw_tokens
from frontend.pages.tokens.coloured import QUANTITIES, view
from rollouts.selectors import runs, sampled_tokens, token_values


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


@page
@require_safe
def raw(request: HttpRequest, key: str, rollout: int) -> HttpResponse:
    """Ids and the engine's logprobs of a rollout, whether or not it was in a batch."""
    run = runs.get(request.user, key)
    stored = sampled_tokens.get(run, rollout)
    context = {
        "run": run,
        "rollout": stored.rollout,
        "view": raw_tokens.view(stored, query.number(request, "from") or 0),
    }
    return render(request, "tokens/raw.html", context)
