"""Exports: what was asked for and how far it is, a form to ask, and the files."""

from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from frontend.access import actor, page
from frontend.typed import tell_refusal
from rollouts.errors import Conflict, Forbidden, Invalid
from rollouts.models import ExportForm, FileFormat, Role
from rollouts.selectors import exports as export_selectors
from rollouts.selectors import runs
from rollouts.services.datasets import exports
from rollouts.storable import displayable
from rollouts.streaming import StreamedFile

SHOWN = 100


@page
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """The newest exports of one's projects, and a form, filled in by a link (`?version=4`)."""
    return _index(request, _given(request.GET), {}, status=200)


@page
@require_safe
def live(request: HttpRequest) -> HttpResponse:
    """The table of them, which asks for itself while one is written."""
    return render(request, "exports/_table.html", _table(request))


@page
@require_POST
def make(request: HttpRequest) -> HttpResponse:
    """Ask for the export of the form. Needs the curator role in the dataset's project."""
    given = _given(request.POST)
    number = given["version"]
    is_number = number.isascii() and number.isdecimal() and len(number) < 18
    version = export_selectors.list_versions(request.user).filter(pk=int(number) if is_number else 0).first()
    if version is None:
        raise Forbidden("A version is exported by a curator of its project, and you are none of this one.")
    try:
        exports.request(
            version,
            form=given["form"],
            file_format=given["file_format"],
            user=cast(User, request.user),
            actor=actor(request),
        )
    except (Invalid, Conflict) as error:
        tell_refusal(request, error.message)
        return _index(request, given, error.fields or {"version": error.message}, status=error.status)
    messages.success(request, f"{version} is being exported.")
    return HttpResponseRedirect(reverse("exports"))


@page
@require_POST
def cancel(request: HttpRequest, export_key: str) -> HttpResponse:
    """Want it no more. Needs the curator role."""
    found = export_selectors.get(request.user, export_key, Role.CURATOR)
    try:
        exports.cancel(found, actor=actor(request))
    except Conflict as error:
        messages.error(request, error.message)
    return HttpResponseRedirect(reverse("exports"))


@page
@require_POST
def remove(request: HttpRequest, export_key: str) -> HttpResponse:
    """Remove its files. Needs the curator role."""
    found = export_selectors.get(request.user, export_key, Role.CURATOR)
    try:
        exports.remove(found, actor=actor(request))
    except Conflict as error:
        messages.error(request, error.message)
    return HttpResponseRedirect(reverse("exports"))


@page
@require_safe
def download(request: HttpRequest, export_key: str, file: str) -> HttpResponse:
    """A file of it, streamed. Needs the curator role."""
    found = export_selectors.get(request.user, export_key, Role.CURATOR)
    try:
        path = exports.file_of(found, file)
    except Conflict as error:
        messages.error(request, error.message)
        return HttpResponseRedirect(reverse("exports"))
    answer = StreamedFile(path.open("rb"), as_attachment=True, content_type="application/octet-stream")
    return cast(HttpResponse, answer)


def _given(values: QueryDict) -> dict[str, str]:
    """The fields of the form."""
    return {name: displayable(values.get(name, "")) for name in ("version", "form", "file_format")}


def _index(request: HttpRequest, given: dict[str, str], errors: dict[str, str], *, status: int) -> HttpResponse:
    context = _table(request) | {
        "versions": export_selectors.offered(request.user, given["version"]),
        "given": given,
        "errors": errors,
        "forms": ExportForm.choices,
        "formats": FileFormat.choices,
    }
    return render(request, "exports/index.html", context, status=status)


def _table(request: HttpRequest) -> dict[str, Any]:
    rows = list(export_selectors.list_exports(request.user)[:SHOWN])
    curated = set(runs.projects(request.user, Role.CURATOR).values_list("pk", flat=True))
    shown = [(export, export.version.dataset.project_id in curated) for export in rows]
    return {"exports": shown, "newest": SHOWN, "is_live": any(export.is_open for export in rows)}
