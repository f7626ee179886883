"""Exports as jobs: asked for, written by whoever takes it, cancelled, removed.

    request ─► queued ─► take (epoch + 1, lease) ─► chunk, chunk, ... each renews the lease ─► done
                 ▲ taken again when the lease is over: it goes on behind the last chunk

Every write of a worker names its epoch and finds the export being written: one that comes late changes nothing, and
leaves the files, which are locked besides.
"""

import logging
import shutil
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import DatabaseError, InterfaceError, transaction
from django.db.models import F, Q, QuerySet, Value
from django.db.models.expressions import CombinedExpression
from django.db.models.functions import Now

from environments import disk
from environments.errors import words_of
from rollouts.errors import Conflict, Invalid, LeaseLost, NotFound, StateConflict
from rollouts.formats.tables import Untabular
from rollouts.models import DatasetVersion, Export, ExportForm, FileFormat
from rollouts.reasons import Reason, ReasonCode
from rollouts.services.datasets import files, rendering
from rollouts.services.transitions import DB_NOW, move, record_creation, transition
from rollouts.states import ExportState

log = logging.getLogger(__name__)

LEASE_S = 120.0
"""Between two chunks, or while the last is packed as a table: a worker that is silent for longer is gone."""
KEEP = timedelta(days=30)
"""Files are removed so long after they were complete."""
_OPEN = [ExportState.QUEUED, ExportState.WRITING]
MOST_OPEN = 20
"""Exports of a project that wait or are written: each may be as large as the store."""


def request(
    version: DatasetVersion, *, form: str, file_format: str = FileFormat.JSONL, user: User | None, actor: str
) -> Export:
    """Ask for a version as files. The caller has made sure that the user may curate. Raises Invalid, Conflict."""
    faults = {}
    if form not in ExportForm.values:
        faults["form"] = f"must be one of {', '.join(ExportForm.values)}"
    if file_format not in FileFormat.values:
        faults["file_format"] = f"must be one of {', '.join(FileFormat.values)}"
    if faults:
        raise Invalid("Nothing is exported.", fields=faults)
    rendering.check_form(version, ExportForm(form))
    if (
        Export.objects.filter(version__dataset__project=version.dataset.project_id, state__in=_OPEN).count()
        >= MOST_OPEN
    ):
        raise Conflict(f"{MOST_OPEN} exports of this project are not done yet. Wait for them, or cancel some.")
    with transaction.atomic():
        export = Export.objects.create(
            version=version, form=form, file_format=file_format, created_by=user, actor=actor
        )
        record_creation([export], run_id=None, state=ExportState.QUEUED, actor=actor)
    export.refresh_from_db()
    return export


def directory(export: Export) -> Path:
    """Where its files are: a directory that only the installation may look into."""
    return Path(settings.ROLLYARD_HOME) / "exports" / export.key


def file_of(export: Export, name: str) -> Path:
    """A complete file of it, by its name. Raises StateConflict before it is done, NotFound for what is none of it."""
    if export.state != ExportState.DONE or export.manifest is None:
        raise StateConflict(f"Export {export.key} is {export.state}: there is nothing to download.")
    if name != files.MANIFEST and name not in export.manifest["files"]:
        raise NotFound(f"Export {export.key} has no file {name[:100]!r}.")
    path = directory(export) / name
    if not path.is_file():
        raise NotFound(f"{name} of export {export.key} is not on this machine any more. Export the version again.")
    return path


def cancel(export: Export, *, actor: str) -> None:
    """Want it no more. Its worker hears of it at the next chunk. Raises StateConflict when it is over."""
    move(export, to=ExportState.CANCELLED, actor=actor, finished_at=DB_NOW, expires_at=None)


def remove(export: Export, *, actor: str) -> None:
    """Remove the files of one that is done; the row stays. Raises StateConflict for another."""
    move(export, to=ExportState.DELETED, actor=actor, finished_at=DB_NOW)
    disk.remove_directory(directory(export))


def take(worker: str) -> Export | None:
    """Take the oldest export that nobody writes; None: there is none. Locks its row."""
    free = Q(state=ExportState.QUEUED) | Q(state=ExportState.WRITING, expires_at__lt=Now())
    with transaction.atomic():
        waiting = Export.objects.select_for_update(skip_locked=True).filter(free).annotate(until=_lease())
        export = waiting.order_by("id").first()
        if export is None:
            return None
        if export.state == ExportState.QUEUED:
            columns = {"expires_at": export.until, "epoch": export.epoch + 1}
            transition(Export, [export.pk], to=ExportState.WRITING, actor=f"worker:{worker}", **columns)
        else:
            Export.objects.filter(pk=export.pk).update(epoch=F("epoch") + 1, expires_at=_lease())
        return Export.objects.select_related("version__dataset__project", "version__parent__dataset").get(pk=export.pk)


def write(export: Export, worker: str) -> None:
    """Write what was taken, to its end. Raises LeaseLost when another worker has it, or nobody wants it any more."""
    actor, suffix = f"worker:{worker}", f".{export.file_format}"

    def told(progress: files.ExportProgress) -> None:
        columns = {
            "members_done": progress.members,
            "row_count": progress.rows,
            "size_bytes": progress.size_bytes,
            "expires_at": _lease(),
        }
        if not _mine(export).update(**columns):
            raise LeaseLost(f"Export {export.key} was taken over, or cancelled.")

    try:
        manifest = files.write_directory(
            export.version, ExportForm(export.form), directory(export), suffix=suffix, told=told
        )
    except (Untabular, OSError) as error:
        words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        _end(export, ExportState.FAILED, actor, Reason(ReasonCode.TEXT, text=words))
        return
    except (DatabaseError, InterfaceError, Conflict):
        raise
    except Exception as error:  # whoever takes it next would end of it as well, and so on for ever
        log.exception("export %s", export.key)
        words = f"{type(error).__name__}: {words_of(error)}"
        _end(export, ExportState.FAILED, actor, Reason(ReasonCode.TEXT, text=words))
        return
    size = sum(each["size_bytes"] for each in manifest["files"].values())
    _end(export, ExportState.DONE, actor, None, manifest=manifest, size_bytes=size)


def write_all(worker: str) -> int:
    """Write every export that nobody writes, one after the other; how many that were."""
    count = 0
    while (export := take(worker)) is not None:
        count += 1
        try:
            write(export, worker)
        except (LeaseLost, Conflict) as error:
            log.info("%s", error)
    return count


def are_waiting() -> bool:
    """Whether an export waits for a worker. One query."""
    free = Q(state=ExportState.QUEUED) | Q(state=ExportState.WRITING, expires_at__lt=Now())
    return Export.objects.filter(free).exists()


def sweep() -> None:
    """Remove files that are kept no longer, and those of exports that came to nothing."""
    old = Export.objects.filter(state=ExportState.DONE, finished_at__lt=Now() - Value(KEEP))
    for export in old:
        with suppress(StateConflict):  # somebody removed it meanwhile
            remove(export, actor="worker:retention")
    root = Path(settings.ROLLYARD_HOME) / "exports"
    there = {path.name: path for path in root.iterdir()} if root.is_dir() else {}
    kept = Export.objects.filter(key__in=there, state__in=[*_OPEN, ExportState.DONE]).values_list("key", flat=True)
    for name in there.keys() - set(kept):
        shutil.rmtree(there[name], ignore_errors=True)


def _end(export: Export, to: ExportState, actor: str, reason: Reason | None, **columns: Any) -> None:
    """Leave it in a last state, if it is still this worker's."""
    with transaction.atomic():
        if not _mine(export).select_for_update().exists():
            raise LeaseLost(f"Export {export.key} was taken over, or cancelled.")
        transition(
            Export, [export.pk], to=to, actor=actor, reason=reason, expires_at=None, finished_at=DB_NOW, **columns
        )


def _mine(export: Export) -> QuerySet[Export]:
    return Export.objects.filter(pk=export.pk, state=ExportState.WRITING, epoch=export.epoch)


def _lease() -> CombinedExpression:
    return Now() + Value(timedelta(seconds=LEASE_S))
