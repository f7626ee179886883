"""Ask for versions of datasets as files, hear how far they are, and fetch them."""

from typing import Any, cast

import msgspec
from django.contrib.auth.models import User
from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from rollouts.doors.native import wire
from rollouts.doors.native.access import ROLE_FOR, actor_of, check_scope, get_project, token_of
from rollouts.doors.native.runs import integer
from rollouts.errors import Forbidden, Invalid, NotFound
from rollouts.models import DatasetVersion, Export, Scope
from rollouts.selectors import exports as export_selectors
from rollouts.services.datasets import exports
from rollouts.streaming import StreamedFile

PAGE = 100
_BEFORE = OpenApiParameter("before", int, description="Only those older than this cursor.")


class ExportIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What is to be written."""

    version: str
    """`NAME@3`: a version of a dataset."""
    form: str
    """`sft`, `kto` or `dpo`."""
    file_format: str = "jsonl"
    """`jsonl` or `parquet`."""
    project: str | None = None
    """Slug; null: the only one in which you may."""


class ExportOut(msgspec.Struct, kw_only=True):
    """An export and how far it is."""

    export: str
    project: str
    version: str
    form: str
    file_format: str
    state: str
    """`queued`, `writing`, `done`, `failed`, `cancelled` or `deleted`."""
    reason: str
    actor: str
    examples: int
    """Of the version."""
    examples_done: int
    rows: int
    size_bytes: int
    manifest: dict[str, Any] | None
    """With the files, their sizes and hashes; null before it is done."""
    created_at: str
    finished_at: str | None


class ExportsOut(msgspec.Struct):
    exports: list[ExportOut]
    next_before: int | None
    """Pass as ``before`` for the next page; null on the last."""


class ExportsApi(APIView):
    """`/exports`"""

    parser_classes = [wire.RawParser]

    @extend_schema(operation_id="listExports", parameters=[_BEFORE], responses=wire.answer(ExportsOut))
    def get(self, request: Request) -> Response:
        """The exports of your projects, newest first, 100 a page."""
        found = _visible(request, Scope.READ)
        if (before := integer(request, "before")) is not None:
            found = found.filter(pk__lt=before)
        page = list(found[:PAGE])
        cursor = page[-1].pk if len(page) == PAGE else None
        return Response(wire.json(ExportsOut([_out(export) for export in page], cursor)))

    @extend_schema(
        operation_id="createExport",
        request=wire.body(ExportIn),
        responses={(201, "application/json"): wire.schema_of(ExportOut)},
    )
    def post(self, request: Request) -> Response:
        """Ask for a version as files. A worker writes them; the same version is the same bytes."""
        asked = wire.decode(request, ExportIn)
        project = get_project(request, asked.project, Scope.CURATE)
        name, _, number = asked.version.rpartition("@")
        known = DatasetVersion.objects.filter(dataset__project=project, dataset__name=name)
        version = known.filter(version=int(number)).first() if number.isdecimal() and len(number) < 10 else None
        if version is None:
            fault = f"{asked.version[:200]} is no version of a dataset of project {project.slug}: name it as `name@3`"
            raise Invalid("Nothing is exported.", fields={"version": fault})
        user, actor = cast(User, request.user), actor_of(request)
        export = exports.request(version, form=asked.form, file_format=asked.file_format, user=user, actor=actor)
        return Response(wire.json(_out(export)), status=201)


class ExportApi(APIView):
    """`/exports/<export_key>`"""

    @extend_schema(operation_id="readExport", responses=wire.answer(ExportOut))
    def get(self, request: Request, export_key: str) -> Response:
        """One export, and how far it is."""
        return Response(wire.json(_out(_get(request, export_key, Scope.READ))))


class CancelExportApi(APIView):
    """`/exports/<export_key>/cancel`"""

    parser_classes = [wire.RawParser]

    @extend_schema(operation_id="cancelExport", request=None, responses=wire.answer(ExportOut))
    def post(self, request: Request, export_key: str) -> Response:
        """Want it no more. What was written of it is removed."""
        found = _get(request, export_key, Scope.CURATE)
        exports.cancel(found, actor=actor_of(request))
        return Response(wire.json(_out(found)))


class RemoveExportApi(APIView):
    """`/exports/<export_key>/remove`"""

    parser_classes = [wire.RawParser]

    @extend_schema(operation_id="removeExport", request=None, responses=wire.answer(ExportOut))
    def post(self, request: Request, export_key: str) -> Response:
        """Remove its files. Exporting the version again gives the same ones."""
        found = _get(request, export_key, Scope.CURATE)
        exports.remove(found, actor=actor_of(request))
        return Response(wire.json(_out(found)))


class ExportFileApi(APIView):
    """`/exports/<export_key>/files/<file>`"""

    @extend_schema(
        operation_id="readExportFile",
        responses={(200, "application/octet-stream"): OpenApiTypes.BINARY},
    )
    def get(self, request: Request, export_key: str, file: str) -> StreamedFile:
        """A file of it, or `manifest.json`."""
        path = exports.file_of(_get(request, export_key, Scope.CURATE), file)
        return StreamedFile(path.open("rb"), as_attachment=True, content_type="application/octet-stream")


def _visible(request: Request, scope: Scope) -> QuerySet[Export]:
    check_scope(request, scope)
    found = export_selectors.list_exports(request.user, ROLE_FOR[scope])
    if (token := token_of(request)) is not None:
        # What is exported goes beyond one run.
        found = found.filter(version__dataset__project=token.project_id) if token.run_id is None else found.none()
    return found


def _get(request: Request, key: str, scope: Scope) -> Export:
    found = _visible(request, scope).filter(key=key).first()
    if found is not None:
        return found
    if token_of(request) is None:
        export_selectors.get(request.user, key, ROLE_FOR[scope])
    elif scope != Scope.READ and export_selectors.list_exports(request.user).filter(key=key).exists():
        raise Forbidden("This needs the role curator in its project, and a token of it that is bound to no run.")
    raise NotFound(f"There is no export {key}, or you may not see it.")


def _out(export: Export) -> ExportOut:
    return ExportOut(
        export=export.key,
        project=export.version.dataset.project.slug,
        version=str(export.version),
        form=export.form,
        file_format=export.file_format,
        state=export.state,
        reason=export.state_reason,
        actor=export.actor,
        examples=export.version.member_count,
        examples_done=export.members_done,
        rows=export.row_count,
        size_bytes=export.size_bytes,
        manifest=export.manifest,
        created_at=export.created_at.isoformat(),
        finished_at=export.finished_at.isoformat() if export.finished_at else None,
    )
