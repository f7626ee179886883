"""Reads of exports: which somebody may see, and what could be exported."""

from typing import Any

from django.db.models import QuerySet

from rollouts.errors import Forbidden, NotFound
from rollouts.models import DatasetVersion, Export, Role, Run, RunDataset
from rollouts.selectors import runs

MOST_VERSIONS = 200
"""Of the newest, that a form offers."""
_MOST_DIGITS = 19
"""Of an id; the longest of texts are no numbers to Python."""


def list_exports(user: Any, at_least: Role = Role.VIEWER) -> QuerySet[Export]:
    """The exports of a user's projects, newest first."""
    found = Export.objects.filter(version__dataset__project__in=runs.projects(user, at_least))
    return found.select_related("version__dataset__project").order_by("-id")


def get(user: Any, key: str, at_least: Role = Role.VIEWER) -> Export:
    """One export. Raises NotFound, and Forbidden for too low a role."""
    export = list_exports(user).filter(key=key).first()
    if export is None:
        raise NotFound(f"There is no export {key}, or you may not see it.")
    if at_least != Role.VIEWER and not list_exports(user, at_least).filter(pk=export.pk).exists():
        project = export.version.dataset.project
        raise Forbidden(f"This needs the role {at_least.value} in the project {project}.")
    return export


def list_versions(user: Any, at_least: Role = Role.CURATOR) -> QuerySet[DatasetVersion]:
    """What a user may export, newest first."""
    found = DatasetVersion.objects.filter(dataset__project__in=runs.projects(user, at_least))
    return found.select_related("dataset__project").order_by("-id")


def offered(user: Any, asked: str) -> list[DatasetVersion]:
    """The newest of them, and before these the one whose id is asked for, where it is older."""
    versions = list_versions(user)
    newest = list(versions[:MOST_VERSIONS])
    if not (asked.isdecimal() and len(asked) <= _MOST_DIGITS) or any(str(each.pk) == asked for each in newest):
        return newest
    return [*versions.filter(pk=int(asked)), *newest]


def learned_of(run: Run) -> QuerySet[RunDataset]:
    """The versions that a run learns from, and is measured on."""
    return RunDataset.objects.filter(run=run).select_related("version__dataset").order_by("-split")


def learned_by(version: DatasetVersion) -> QuerySet[RunDataset]:
    """The runs that learn from a version, newest first. Whoever sees the version sees them: they are of its project."""
    return RunDataset.objects.filter(version=version).select_related("run").order_by("-run_id")
