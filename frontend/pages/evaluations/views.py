"""Evaluations: what was measured, of one run over its versions, how much better one is than another; a form to ask."""

from typing import Any, cast

from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from frontend.access import actor, page
from frontend.pages.evaluations import shown
from frontend.pages.evaluations.form import EvaluationForm
from frontend.typed import tell_refusal
from rollouts.errors import Conflict, Forbidden, Invalid
from rollouts.models import Role
from rollouts.selectors import evaluations, runs
from rollouts.services.runs import evaluating
from trainers.config import ConfigError
from trainers.origins import Origin, OriginKind

_NEWEST = 100


@page
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """The newest evaluations of all runs that the user may see, two of which can be chosen to be compared; and a form
    to launch one, filled in by a link (`?target=warm&environments=code`)."""
    return _index(request, EvaluationForm(request.GET), status=200)


@page
@require_POST
def make(request: HttpRequest) -> HttpResponse:
    """Launch the evaluation of the form. Needs the operator role in its project."""
    form = EvaluationForm(request.POST)
    project = runs.projects(request.user, Role.OPERATOR).filter(slug=form.project).first()
    if project is None:
        raise Forbidden("An evaluation is launched by an operator of its project, and you are none of this one.")
    try:
        run = evaluating.launch(
            form.asked(),
            project=project,
            user=cast(User, request.user),
            actor=actor(request),
            forkable=runs.for_user(request.user, Role.OPERATOR),
            origin=Origin(OriginKind.FORM),
        )
    except ConfigError as error:
        form.refuse((problem.path, problem.message) for problem in error.problems)
        tell_refusal(request, "Nothing is measured.")
    except (Invalid, Conflict) as error:
        form.refuse(error.fields.items() or [("", error.message)])
        tell_refusal(request, error.message)
    else:
        return HttpResponseRedirect(reverse("run-evaluations", args=[run.key]))
    return _index(request, form, status=422)


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


def _index(request: HttpRequest, form: EvaluationForm, *, status: int) -> HttpResponse:
    found = evaluations.for_user(request.user).order_by("-id")[:_NEWEST]
    context = {
        "lines": [shown.line(each) for each in found],
        "newest": _NEWEST,
        "form": form,
        "projects": runs.projects(request.user, Role.OPERATOR).order_by("name"),
    }
    return render(request, "evaluations/index.html", context, status=status)
