"""Launch a run: choose a preset or a run to clone, change what differs, see what it comes to, launch."""

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from frontend.access import actor, page
from frontend.pages.launch import draft, sources
from frontend.pages.launch.draft import LaunchRequest
from frontend.pages.launch.sources import Source
from frontend.pages.launch.summary import summarise
from frontend.query import number
from rollouts.errors import Conflict, Invalid, NotFound, Unavailable
from rollouts.models import DatasetVersion, Project, Role, Run
from rollouts.selectors import datasets, models, runs
from rollouts.services.runs import launches
from trainers.config import ConfigError, Resolved, resolve


@page
@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """The gallery of presets, the form of one, or the launch of what was filled in."""
    projects = _projects(request)
    source = _source(request)
    if source is None:
        version = _version(request)
        presets = sources.list_presets(version)
        first = sources.from_preset(presets[0].name)
        context = {
            "presets": presets,
            "version": version,
            "words": sources.with_version(first, version).words if version else ["optimizer.lr=1e-4"],
        }
        return render(request, "launch/gallery.html", context)
    project = _chosen(request, projects)
    filled = _filled(request, source, project)
    if request.method != "POST" or filled.resolved is None:
        return _form(request, filled, projects, project)
    try:
        run = _launch(request, filled.resolved, project, fork_optimizer=filled.takes_optimizer)
    except (Invalid, Conflict) as error:  # of what was changed since it was checked
        draft.refused(filled, error)
        return _form(request, filled, projects, project)
    return HttpResponseRedirect(reverse("run", args=[run.key]))


@page
@require_POST
def check(request: HttpRequest) -> HttpResponse:
    """What the form would launch: the summary beside it and what to say of the model, for htmx. Changes nothing."""
    return _checked(request)


@page
@require_POST
def make_model(request: HttpRequest) -> HttpResponse:
    """Launch the run that makes the model which the form names, unless one does already; answers as `check` does."""
    project = _chosen(request, _projects(request))
    filled = _filled(request, _needed_source(request), project)
    if name := filled.missing_model:
        maker, preset = models.find_maker(project, name), models.preset_that_makes(name)
        if preset and (maker is None or maker.is_over):
            maker = _launch(request, resolve(preset), project)
        if maker and not getattr(request, "htmx", False):
            return HttpResponseRedirect(reverse("run", args=[maker.key]))
    return _checked(request)


def _checked(request: HttpRequest) -> HttpResponse:
    project = _chosen(request, _projects(request))
    filled = _filled(request, _needed_source(request), project)
    context = _summary(request, filled, project) | {"is_fragment": True}
    return render(request, "launch/_summary.html", context)


def _form(request: HttpRequest, filled: LaunchRequest, projects: list[Project], project: Project) -> HttpResponse:
    context = {
        "filled": filled,
        "source": filled.source,
        "projects": projects,
        "chosen": project.slug,
    } | _summary(request, filled, project)
    return render(request, "launch/form.html", context, status=422 if request.method == "POST" else 200)


def _summary(request: HttpRequest, filled: LaunchRequest, project: Project) -> dict[str, object]:
    config = filled.resolved.config if filled.resolved else None
    missing = filled.missing_model
    return {
        "result": filled,
        "summary": summarise(config) if config else None,
        "query": request.GET.urlencode(),
        "maker": models.find_maker(project, missing) if missing else None,
        "maker_preset": models.preset_that_makes(missing),
        "may_trust": isinstance(request.user, User) and request.user.is_superuser,
    }


def _filled(request: HttpRequest, source: Source, project: Project) -> LaunchRequest:
    """The form as it was posted, or as it is first shown, checked as a launch would be."""
    forkable = runs.for_user(request.user, Role.OPERATOR)

    def check(resolved: Resolved, fork_optimizer: bool) -> None:
        try:
            launches.find_start(project, resolved, forkable=forkable, fork_optimizer=fork_optimizer)
        except Unavailable as error:
            raise Invalid("It could not be checked.", fields={launches.FIELD: error.message}) from None

    posted = request.POST if request.method == "POST" else draft.as_posted(draft.blank(source))
    return draft.submitted(source, posted, check)


def _launch(request: HttpRequest, resolved: Resolved, project: Project, *, fork_optimizer: bool = False) -> Run:
    return launches.launch(
        project=project,
        user=request.user if isinstance(request.user, User) else None,
        resolved=resolved,
        actor=actor(request),
        forkable=runs.for_user(request.user, Role.OPERATOR),
        fork_optimizer=fork_optimizer,
    )


def _needed_source(request: HttpRequest) -> Source:
    source = _source(request)
    if source is None:
        raise NotFound("Name a preset or a run to clone.")
    return source


def _source(request: HttpRequest) -> Source | None:
    key, preset, model = (request.GET.get(name, "") for name in ("clone", "preset", "model"))
    if not key and not preset:
        return None
    try:
        source = sources.from_run(runs.get(request.user, key)) if key else sources.from_preset(preset)
    except ConfigError as error:
        raise NotFound(str(error)) from None
    if (version := _version(request)) is not None:
        if source.config["kind"] != "sft":
            raise NotFound("A version of a dataset is learned from by a supervised run: choose such a preset.")
        source = sources.with_version(source, version)
    return sources.with_model(source, model) if model else source


def _version(request: HttpRequest) -> DatasetVersion | None:
    """The version of a dataset that a link says to learn from (`?version=4`). Raises NotFound."""
    if request.GET.get("version") is None:
        return None
    return datasets.version_by_id(request.user, number(request, "version") or 0)


def _projects(request: HttpRequest) -> list[Project]:
    found = list(runs.projects(request.user, Role.OPERATOR).order_by("name"))
    if not found:
        raise PermissionDenied("Launching needs the operator role in a project.")
    return found


def _chosen(request: HttpRequest, projects: list[Project]) -> Project:
    slug = request.POST.get("project") or _begins_in(request, projects)
    project = next((project for project in projects if project.slug == slug), None)
    if project is None:
        raise PermissionDenied("You may not launch in that project.")
    return project


def _begins_in(request: HttpRequest, projects: list[Project]) -> str:
    """The project that the form begins with: that of what a link starts from, if runs may be launched there. A version
    of a dataset is known nowhere else."""
    if (version := _version(request)) is not None:
        return version.dataset.project.slug
    key, named = request.GET.get("clone"), request.GET.get("project", "")
    wanted = runs.get(request.user, key).project.slug if key else named
    return wanted if any(project.slug == wanted for project in projects) else projects[0].slug
