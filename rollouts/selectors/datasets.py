"""Reads of datasets: which somebody may see, their versions, members page by page, and how two versions differ."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from django.contrib.auth.models import AnonymousUser, User
from django.db import connection
from django.db.models import Max, QuerySet

from rollouts.errors import Forbidden, NotFound
from rollouts.models import Dataset, DatasetMember, DatasetVersion, Role, ScoredGroup
from rollouts.selectors import runs
from rollouts.sql import load

NO_DATASET = "There is no dataset {key}, or you may not see it."
CHANGES = ("added", "removed", "relabelled", "moved", "same")


def list_datasets(user: User | AnonymousUser) -> QuerySet[Dataset]:
    """The datasets of a user's projects, newest first, each with the number of its newest version (`newest`)."""
    found = Dataset.objects.filter(project__in=runs.projects(user)).select_related("project")
    return found.annotate(newest=Max("versions__version")).order_by("-id")


def get(user: User | AnonymousUser, key: str, at_least: Role = Role.VIEWER) -> Dataset:
    """One dataset. Raises NotFound, and Forbidden for too low a role."""
    dataset = list_datasets(user).filter(key=key).first()
    if dataset is None:
        raise NotFound(NO_DATASET.format(key=key))
    if at_least is not Role.VIEWER and not runs.projects(user, at_least).filter(pk=dataset.project_id).exists():
        raise Forbidden(f"This needs the role {at_least.value} in project {dataset.project}.")
    return dataset


def versions(dataset: Dataset) -> QuerySet[DatasetVersion]:
    """The versions of a dataset, newest first."""
    found = dataset.versions.select_related("dataset__project", "parent__dataset")
    return found.order_by("-version")


def version(dataset: Dataset, number: int) -> DatasetVersion:
    """One version. Raises NotFound."""
    found = versions(dataset).filter(version=number).first() if number < 2**31 else None
    if found is None:
        raise NotFound(f"{dataset} has no version {number}.")
    return found


def version_by_id(user: User | AnonymousUser, version_id: int) -> DatasetVersion:
    """One version, by its row. Raises NotFound."""
    found = DatasetVersion.objects.filter(dataset__project__in=runs.projects(user), pk=version_id)
    version = found.select_related("dataset__project").first()
    if version is None:
        raise NotFound("There is no such version of a dataset, or you may not see it.")
    return version


def first_group(version: DatasetVersion) -> ScoredGroup | None:
    """The group that a version has a rollout of first, with its run and environment; None: it has lines of a file."""
    members = version.members.filter(group__isnull=False).select_related("group__run", "group__environment")
    first = members.order_by("position").first()
    return first.group if first else None


def members(version: DatasetVersion) -> QuerySet[DatasetMember]:
    """The members of a version in their order, each with what it refers to but the groups' messages of others."""
    found = DatasetMember.objects.filter(version=version).order_by("position")
    return found.select_related("group__run", "group__environment", "rollout", "other", "correction")


def at(version: DatasetVersion, positions: Iterable[int]) -> dict[int, DatasetMember]:
    """Position -> member, of some of a version."""
    return {member.position: member for member in members(version).filter(position__in=list(positions))}


def of_group(group: ScoredGroup, limit: int = 20) -> list[DatasetVersion]:
    """The newest versions that have rollouts of a group."""
    found = DatasetVersion.objects.filter(pk__in=DatasetMember.objects.filter(group=group).values("version"))
    return list(found.select_related("dataset").defer("statistics").order_by("-id")[:limit])


@dataclass(frozen=True)
class MemberChange:
    """One member that two versions do not have alike: its position in each; None: it is not in that one."""

    before: int | None
    after: int | None


@dataclass(frozen=True)
class VersionDifference:
    """How two versions differ."""

    counts: dict[str, int] = field(default_factory=dict)
    """Kind of change -> members, for each of CHANGES."""
    first: dict[str, list[MemberChange]] = field(default_factory=dict)


def difference(before: DatasetVersion, after: DatasetVersion, shown: int = 20) -> VersionDifference:
    """What became of the members of one version in another one, in one statement."""
    parameters = {"before": before.pk, "after": after.pk, "shown": shown}
    counts: dict[str, int] = dict.fromkeys(CHANGES, 0)
    first: dict[str, list[MemberChange]] = {kind: [] for kind in CHANGES}
    with connection.cursor() as cursor:
        cursor.execute(load("dataset_difference"), parameters)
        for kind, total, earlier, later in cursor.fetchall():
            counts[kind] = total
            first[kind].append(MemberChange(earlier, later))
    return VersionDifference(counts, first)
