"""What changed between two states of an environment's code, as lines."""

import difflib
from dataclasses import dataclass

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from frontend.access import page
from frontend.pages.environments.health import played_rows
from rollouts.models import EnvironmentSource
from rollouts.selectors import runs

_KINDS = {"+": "added", "-": "removed", "@": "place"}
_MOST_LINES = 5_000


@dataclass(frozen=True)
class ChangedFile:
    """One file of which something differs."""

    path: str
    lines: list[tuple[str, str]]
    """(css class, line)."""


@page
@require_safe
def difference(request: HttpRequest, name: str, before: int, after: int) -> HttpResponse:
    """The code of an environment may be somebody's own: it is shown to who sees a run that played it."""
    found = EnvironmentSource.objects.filter(name=name).in_bulk([before, after])
    if len(found) < 2 or not played_rows(name, runs.that_play(request.user, name)):
        raise Http404("There is no such code here.")
    old, new = found[before], found[after]
    files = [
        ChangedFile(path, _lines(old.files.get(path, ""), new.files.get(path, "")))
        for path in sorted(old.files.keys() | new.files.keys())
        if old.files.get(path) != new.files.get(path)
    ]
    context = {"name": name, "before": old, "after": new, "files": files}
    return render(request, "environments/difference.html", context)


def _lines(before: str, after: str) -> list[tuple[str, str]]:
    made = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=3)
    lines = [line for line in made if not line.startswith(("--- ", "+++ "))][:_MOST_LINES]
    return [(_KINDS.get(line[:1], ""), line) for line in lines]
