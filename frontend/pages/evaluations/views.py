"""Evaluations: what was measured, of one run over its versions, and how much better one is than another."""

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from frontend.access import page
from frontend.pages.evaluations import shown
from rollouts.errors import Conflict
from rollouts.selectors import evaluations, runs

_NEWEST = 100


@page
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """The newest evaluations of all runs that the user may see, two of which can be chosen to be compared."""
    found = evaluations.for_user(request.user).order_by("-id")[:_NEWEST]
    return render(request, "evaluations/index.html", {"lines": [shown.line(each) for each in found], "newest": _NEWEST})


@page
@require_safe
def of_run(request: HttpRequest, key: str) -> HttpResponse:
    """Everything that was measured in one run: a table, and a curve over versions for each environment."""
    run = runs.get(request.user, key)
    found = list(evaluations.with_relations(run.evaluations.all()).order_by("environment__name", "version"))
    if not found and not run.parsed.evaluation:
        raise Http404(f"Run {key} evaluates nothing.")
    context = {
        "run": run,
        "lines": [shown.line(each) for each in found],
        "curves": shown.curves(found),
        "live_runs": "" if run.is_over else run.key,
    }
    is_part = bool(getattr(request, "htmx", False))
    return render(request, "evaluations/_of_run.html" if is_part else "evaluations/of_run.html", context)


@page
@require_safe
def compare(request: HttpRequest) -> HttpResponse:
    """Two evaluations pair by pair: `first` and `second` are their numbers."""
    numbers = [request.GET.get(name, "") for name in ("first", "second")]
    if not all(number.isdecimal() and len(number) < 18 for number in numbers):
        return render(request, "evaluations/compare.html", {"refusal": "Choose one evaluation in each column."})
    first, second = (evaluations.get(request.user, int(number)) for number in numbers)
    context: dict[str, Any] = {"first": shown.line(first), "second": shown.line(second)}
    try:
        context["difference"] = evaluations.compare(first, second)
    except Conflict as error:
        context["refusal"] = error.message
    return render(request, "evaluations/compare.html", context)
