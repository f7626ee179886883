"""Models: what runs may start from, where each came from, and what started from it."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from frontend.access import page
from rollouts.errors import Conflict
from rollouts.models import Role
from rollouts.selectors import models, runs
from rollouts.services import models as model_services


@page
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """Every model of the user's projects, newest first."""
    context = {
        "models": models.list_models(request.user),
        "may_launch": runs.projects(request.user, Role.OPERATOR).exists(),
    }
    return render(request, "models/index.html", context)


@page
@require_safe
def model(request: HttpRequest, project: str, name: str) -> HttpResponse:
    """One model: its facts, its origin and the runs that started from it."""
    found = models.get(request.user, project, name)
    context = {
        "model": found,
        "runs": models.list_runs(found),
        "checkpoint": models.find_checkpoint(found),
        "may_operate": models.for_user(request.user, Role.OPERATOR).filter(pk=found.pk).exists(),
    }
    return render(request, "models/model.html", context)


@page
@require_POST
def remove(request: HttpRequest, project: str, name: str) -> HttpResponse:
    """Take the name away; files and runs stay. Needs the operator role."""
    found = models.get(request.user, project, name, Role.OPERATOR)
    try:
        model_services.remove(found)
    except Conflict as error:
        messages.error(request, error.message)
        return HttpResponseRedirect(reverse("model", args=[project, name]))
    messages.success(request, f"{name} is no name of a model any more. Its files stay: {found.source}")
    return HttpResponseRedirect(reverse("models"))
