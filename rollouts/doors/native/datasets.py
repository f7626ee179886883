"""Make versions of datasets of what was played, or of rows; read their members; see how two differ."""

from typing import Any

import msgspec
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from rollouts.doors.messages import JSON
from rollouts.doors.native import wire
from rollouts.doors.native.access import ROLE_FOR, actor_of, check_scope, get_project, token_of
from rollouts.doors.native.runs import integer
from rollouts.errors import Invalid, NotFound
from rollouts.models import Dataset, DatasetMember, DatasetVersion, Scope
from rollouts.selectors import datasets
from rollouts.services.curation.exchange import Line
from rollouts.services.datasets import importing, making
from rollouts.services.datasets.choosing import Recipe
from rollouts.services.datasets.statistics import Statistics, statistics_of
from trainers.wire import MSGPACK

MOST = 1_000
PAGE = 50


class NotesIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What is said of a dataset; both take the place of what was said."""

    notes: str = ""
    licence: str = ""


class VersionIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A version to make: the next one of the dataset of the name, which is made too if there is none."""

    name: str
    form: str = "examples"
    """`examples`, wanted or not, or `pairs`, of which the first is better."""
    project: str | None = None
    """Slug; null: the only one that you may do this in."""
    note: str = ""
    licence: str = ""
    """Of the dataset; empty: as it was."""
    recipe: Recipe


class RowsIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A version to make of rows, in the forms that `data.path` of a supervised run takes."""

    name: str
    form: str = "examples"
    project: str | None = None
    note: str = ""
    licence: str = ""
    source: str = "the API"
    """Where the rows are from."""
    validation_share: float = 0.0
    rows: list[dict[str, Any]]


class DatasetVersionOut(msgspec.Struct, kw_only=True):
    """A version as it was made. Only its statistics come later."""

    dataset: str
    """Key."""
    name: str
    version: int
    form: str
    recipe: dict[str, Any]
    parent: str | None
    """`name@version` that it was made of."""
    members: int
    digest: str
    """Over what is learned: equal digests, equal versions."""
    note: str
    actor: str
    at: str
    statistics: Statistics | None = None
    """Null in lists, and until a worker has counted them."""


class DatasetOut(msgspec.Struct, kw_only=True):
    """A dataset: what its versions are called."""

    dataset: str
    name: str
    project: str
    notes: str
    licence: str
    actor: str
    created_at: str
    newest: int
    versions: list[DatasetVersionOut]
    """Newest first, 1000 at most; of a list empty."""


class DatasetsOut(msgspec.Struct):
    datasets: list[DatasetOut]


class MemberOut(msgspec.Struct, kw_only=True):
    """One example of a version."""

    position: int
    split: str
    is_wanted: bool
    run: str | None
    group: str | None
    rollout: int | None
    reward: float | None
    is_human: bool
    """Whether a person wrote what is learned."""
    messages: Any
    """What is learned; null of rows."""
    original: Any
    """What a person corrected; null: nothing was."""
    other: int | None
    """Of a pair the worse rollout of the group."""
    other_messages: Any
    row: dict[str, Any] | None


class MembersOut(msgspec.Struct):
    members: list[MemberOut]
    next_after: int | None
    """Pass as ``after`` for the next page; null on the last."""


class DifferenceOut(msgspec.Struct):
    """How many members of one version became what in the other, and the positions of the first: before, after."""

    counts: dict[str, int]
    first: dict[str, list[tuple[int | None, int | None]]]


class DatasetsApi(APIView):
    """`/datasets`"""

    parser_classes = [wire.RawParser]

    @extend_schema(operation_id="listDatasets", responses=wire.answer(DatasetsOut))
    def get(self, request: Request) -> Response:
        """Newest first, 1000 at most."""
        check_scope(request, Scope.READ)
        found = datasets.list_datasets(request.user)
        if (token := token_of(request)) is not None:
            # One of a single run opens nothing that others of its project may be in.
            found = found.filter(project=token.project_id) if token.run_id is None else found.none()
        return Response(wire.json(DatasetsOut([_dataset(row, []) for row in found[:MOST]])))

    @extend_schema(
        operation_id="makeDatasetVersion",
        request=wire.body(VersionIn),
        responses={(201, "application/json"): wire.schema_of(DatasetVersionOut)},
    )
    def post(self, request: Request) -> Response:
        """Make the next version of a dataset by a recipe. It never changes from then on."""
        check_scope(request, Scope.CURATE)
        asked = wire.decode(request, VersionIn)
        version = making.make(
            get_project(request, asked.project, Scope.CURATE),
            name=asked.name,
            form=asked.form,
            recipe=asked.recipe,
            actor=actor_of(request),
            note=asked.note,
            licence=asked.licence,
        )
        return Response(wire.json(_version(version)), status=201)


class ImportApi(APIView):
    """`/datasets/import`"""

    parser_classes = [wire.RawParser]

    @extend_schema(
        operation_id="importDatasetVersion",
        request=wire.body(RowsIn),
        responses={(201, "application/json"): wire.schema_of(DatasetVersionOut)},
    )
    def post(self, request: Request) -> Response:
        """Make the next version of a dataset of rows. Bad ones are told by number; then nothing is made."""
        check_scope(request, Scope.CURATE)
        # MessagePack has values that no line of JSON has.
        if wire.media_type(request.content_type or "") == MSGPACK:
            raise UnsupportedMediaType(MSGPACK, f"Rows are lines of JSON: send {JSON}.")
        asked = wire.decode(request, RowsIn)
        lines = (Line(f"rows.{number}", msgspec.json.encode(row)) for number, row in enumerate(asked.rows))
        version = importing.import_rows(
            get_project(request, asked.project, Scope.CURATE),
            name=asked.name,
            form=asked.form,
            lines=lines,
            source=asked.source,
            actor=actor_of(request),
            validation_share=asked.validation_share,
            note=asked.note,
            licence=asked.licence,
        )
        return Response(wire.json(_version(version)), status=201)


class DatasetApi(APIView):
    """`/datasets/<key>`"""

    @extend_schema(operation_id="readDataset", responses=wire.answer(DatasetOut))
    def get(self, request: Request, dataset_key: str) -> Response:
        """A dataset and its versions, newest first."""
        found = _get(request, dataset_key, Scope.READ)
        versions = datasets.versions(found).defer("statistics")[:MOST]
        return Response(wire.json(_dataset(found, [_version(version) for version in versions])))


class NotesApi(APIView):
    """`/datasets/<key>/notes`"""

    parser_classes = [wire.RawParser]

    @extend_schema(operation_id="describeDataset", request=wire.body(NotesIn), responses=wire.answer(DatasetOut))
    def post(self, request: Request, dataset_key: str) -> Response:
        """Say what a dataset is, and under which licence it may be used. Its versions stay as they are."""
        found = _get(request, dataset_key, Scope.CURATE)
        asked = wire.decode(request, NotesIn)
        making.describe(found, notes=asked.notes, licence=asked.licence)
        return Response(wire.json(_dataset(found, [])))


class VersionApi(APIView):
    """`/datasets/<key>/versions/<version>`"""

    @extend_schema(operation_id="readDatasetVersion", responses=wire.answer(DatasetVersionOut))
    def get(self, request: Request, dataset_key: str, version: int) -> Response:
        """A version with its statistics, duplicates and overlap with evaluations."""
        found = datasets.version(_get(request, dataset_key, Scope.READ), version)
        return Response(wire.json(_version(found, statistics=statistics_of(found))))


class MembersApi(APIView):
    """`/datasets/<key>/versions/<version>/members`"""

    @extend_schema(
        operation_id="readDatasetMembers",
        parameters=[OpenApiParameter("after", int, description="Only members behind this position.")],
        responses=wire.answer(MembersOut),
    )
    def get(self, request: Request, dataset_key: str, version: int) -> Response:
        """The members of a version in their order, 50 a page."""
        found = datasets.version(_get(request, dataset_key, Scope.READ), version)
        rows = datasets.members(found)
        if (after := integer(request, "after")) is not None:
            rows = rows.filter(position__gt=after)
        page = list(rows[:PAGE])
        cursor = page[-1].position if len(page) == PAGE else None
        return Response(wire.json(MembersOut([_member(member) for member in page], cursor)))


class DifferenceApi(APIView):
    """`/datasets/<key>/difference`"""

    @extend_schema(
        operation_id="compareDatasetVersions",
        parameters=[
            OpenApiParameter("before", int, required=True, description="A version."),
            OpenApiParameter("after", int, required=True, description="Another one."),
        ],
        responses=wire.answer(DifferenceOut),
    )
    def get(self, request: Request, dataset_key: str) -> Response:
        """What became of the members of one version in another."""
        found = _get(request, dataset_key, Scope.READ)
        numbers = {name: integer(request, name) for name in ("before", "after")}
        if missing := [name for name, number in numbers.items() if number is None]:
            raise Invalid("Two versions are compared.", fields=dict.fromkeys(missing, "must be given"))
        before, after = (datasets.version(found, number or 0) for number in numbers.values())
        difference = datasets.difference(before, after)
        first = {kind: [(each.before, each.after) for each in changes] for kind, changes in difference.first.items()}
        return Response(wire.json(DifferenceOut(difference.counts, first)))


def _get(request: Request, key: str, scope: Scope) -> Dataset:
    """The dataset, if the caller may do this with it. Raises NotFound or Forbidden."""
    check_scope(request, scope)
    found = datasets.get(request.user, key, ROLE_FOR[scope])
    token = token_of(request)
    if token is not None and (token.run_id is not None or token.project_id != found.project_id):
        raise NotFound(datasets.NO_DATASET.format(key=key))
    return found


def _dataset(dataset: Dataset, versions: list[DatasetVersionOut]) -> DatasetOut:
    return DatasetOut(
        dataset=dataset.key,
        name=dataset.name,
        project=dataset.project.slug,
        notes=dataset.notes,
        licence=dataset.licence,
        actor=dataset.actor,
        created_at=dataset.created_at.isoformat(),
        newest=dataset.newest,  # type: ignore[attr-defined]
        versions=versions,
    )


def _version(version: DatasetVersion, statistics: Statistics | None = None) -> DatasetVersionOut:
    return DatasetVersionOut(
        dataset=version.dataset.key,
        name=version.dataset.name,
        version=version.version,
        form=version.form,
        recipe=version.recipe,
        parent=str(version.parent) if version.parent else None,
        members=version.member_count,
        digest=version.digest,
        note=version.note,
        actor=version.actor,
        at=version.at.isoformat(),
        statistics=statistics,
    )


def _member(member: DatasetMember) -> MemberOut:
    rollout, correction = member.rollout, member.correction
    original = rollout.messages if rollout else None
    if rollout and member.group:
        rollout.group = member.group  # which was loaded with the member
    return MemberOut(
        position=member.position,
        split=member.split,
        is_wanted=member.is_wanted,
        run=member.group.run.key if member.group else None,
        group=member.group.key if member.group else None,
        rollout=rollout.index if rollout else None,
        reward=rollout.counting_reward if rollout else None,
        is_human=correction is not None,
        messages=correction.edited if correction else original,
        original=original if correction else None,
        other=member.other.index if member.other else None,
        other_messages=member.other.messages if member.other else None,
        row=member.row,
    )
