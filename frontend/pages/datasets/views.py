"""Datasets: their list with a form to make a version, and one of them with its versions."""

from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from frontend.access import actor, page
from frontend.pages.datasets.form import RecipeForm
from frontend.typed import written
from rollouts.errors import Conflict, Forbidden, Invalid
from rollouts.models import Role
from rollouts.selectors import datasets, runs
from rollouts.services.datasets import making
from rollouts.storable import displayable

SHOWN = 200


@page
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """The datasets of one's projects, and a form to make a version, filled in by a link (`?runs=...&best=1`)."""
    return _index(request, RecipeForm(request.GET), status=200)


@page
@require_POST
def make(request: HttpRequest) -> HttpResponse:
    """Make the version of the form. Needs the curator role in its project."""
    form = RecipeForm(request.POST)
    project = runs.projects(request.user, Role.CURATOR).filter(slug=form.project).first()
    if project is None:
        raise Forbidden("A dataset is made by a curator of its project, and you are none of this one.")
    try:
        version = making.make(project, actor=actor(request), **form.options())
    except (Invalid, Conflict) as error:
        form.errors = error.fields
        messages.error(request, error.message)
        return _index(request, form, status=error.status)
    messages.success(request, f"{version} was made: {version.member_count} members. It never changes.")
    return HttpResponseRedirect(reverse("dataset-version", args=[version.dataset.key, version.version]))


@page
@require_safe
def dataset(request: HttpRequest, dataset_key: str) -> HttpResponse:
    """One dataset: what is said of it, and its versions."""
    return _dataset(request, dataset_key, {}, status=200)


@page
@require_POST
def describe(request: HttpRequest, dataset_key: str) -> HttpResponse:
    """Say something else of the dataset. Needs the curator role."""
    found = datasets.get(request.user, dataset_key, Role.CURATOR)
    said = {name: written(request.POST.get(name, "")) for name in ("notes", "licence")}
    try:
        making.describe(found, **said)
    except Invalid as error:
        messages.error(request, error.message)
        typed = {name: displayable(text) for name, text in said.items()}
        return _dataset(request, dataset_key, typed, status=error.status)
    messages.success(request, "Its notes and licence are stored. Its versions stay as they are.")
    return HttpResponseRedirect(reverse("dataset", args=[dataset_key]))


def _dataset(request: HttpRequest, dataset_key: str, typed: dict[str, str], *, status: int) -> HttpResponse:
    """Its page, in whose form stands what was typed there and refused."""
    found = datasets.get(request.user, dataset_key)
    context = {
        "dataset": found,
        "versions": list(datasets.versions(found).defer("statistics")[:SHOWN]),
        "newest": SHOWN,
        "said": {"notes": found.notes, "licence": found.licence} | typed,
        "is_refused": bool(typed),
        "may_curate": runs.projects(request.user, Role.CURATOR).filter(pk=found.project_id).exists(),
    }
    return render(request, "datasets/dataset.html", context, status=status)


def _index(request: HttpRequest, form: RecipeForm, *, status: int) -> HttpResponse:
    user = cast(User, request.user)
    context: dict[str, Any] = {
        "datasets": datasets.list_datasets(user)[:SHOWN],
        "newest": SHOWN,
        "form": form,
        "projects": runs.projects(user, Role.CURATOR).order_by("name"),
    }
    return render(request, "datasets/index.html", context, status=status)
