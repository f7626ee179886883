"""Launch a run: choose a preset or a run to clone, change what differs, see what it comes to, launch."""

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from frontend.access import actor, page
from frontend.pages.launch import draft
from frontend.pages.launch.draft import LaunchRequest, Source
from frontend.pages.launch.summary import summarise
from rollouts.errors import NotFound
from rollouts.models import Project, Role
from rollouts.selectors import runs
from rollouts.services import runs as run_services
from trainers.config import ConfigError


@page
@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """The gallery of presets, the form of one, or the launch of what was filled in."""
    projects = _projects(request)
    source = _source(request)
    if source is None:
        return render(request, "launch/gallery.html", {"presets": draft.list_presets()})
    if request.method != "POST":
        return _form(request, draft.blank(source), projects)
    filled = draft.submitted(source, request.POST)
    if filled.resolved is None:
        return _form(request, filled, projects, status=422)
    user = request.user if isinstance(request.user, User) else None
    project = _chosen(request, projects)
    run = run_services.create(project=project, user=user, resolved=filled.resolved, actor=actor(request))
    return HttpResponseRedirect(reverse("run", args=[run.key]))


@page
@require_POST
def check(request: HttpRequest) -> HttpResponse:
    """What the form would launch: the summary beside it, for htmx. Changes nothing."""
    _projects(request)
    source = _source(request)
    if source is None:
        raise NotFound("Name a preset or a run to clone.")
    filled = draft.submitted(source, request.POST)
    return render(request, "launch/_summary.html", _summary(filled))


def _form(request: HttpRequest, filled: LaunchRequest, projects: list[Project], status: int = 200) -> HttpResponse:
    context = {
        "filled": filled,
        "source": filled.source,
        "projects": projects,
        "chosen": request.POST.get("project", ""),
        "query": request.GET.urlencode(),
    } | _summary(filled)
    return render(request, "launch/form.html", context, status=status)


def _summary(filled: LaunchRequest) -> dict[str, object]:
    if filled.resolved is None and not filled.problem_count:
        filled = draft.submitted(filled.source, _as_posted(filled))
    config = filled.resolved.config if filled.resolved else None
    return {"result": filled, "summary": summarise(config) if config else None}


def _as_posted(filled: LaunchRequest) -> dict[str, str]:
    posted = {key: item.value for key, item in filled.fields.items()}
    return posted | {f"{section.key}.on": "on" for section in filled.sections if section.is_optional and section.is_on}


def _source(request: HttpRequest) -> Source | None:
    key, preset = request.GET.get("clone"), request.GET.get("preset")
    if key:
        return draft.from_run(runs.get(request.user, key))
    if preset:
        try:
            return draft.from_preset(preset)
        except ConfigError as error:
            raise NotFound(str(error)) from None
    return None


def _projects(request: HttpRequest) -> list[Project]:
    found = list(runs.projects(request.user, Role.OPERATOR).order_by("name"))
    if not found:
        raise PermissionDenied("Launching needs the operator role in a project.")
    return found


def _chosen(request: HttpRequest, projects: list[Project]) -> Project:
    slug = request.POST.get("project", projects[0].slug)
    project = next((project for project in projects if project.slug == slug), None)
    if project is None:
        raise PermissionDenied("You may not launch in that project.")
    return project
