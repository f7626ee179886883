"""Exports as jobs: one worker writes each, a person cancels, files go, and nobody late changes anything."""

import stat
from contextlib import suppress
from unittest.mock import patch

import pytest
from django.db.models.functions import Now

from rollouts.errors import Conflict, Invalid, LeaseLost, NotFound, StateConflict
from rollouts.models import DatasetVersion, Event, Export, FileFormat, Run
from rollouts.services import transitions
from rollouts.services.datasets import exports, files, rendering
from rollouts.states import ExportState
from tests.rollouts import story
from tests.rollouts.datasets.test_making import make, played, say
from tests.rollouts.datasets.test_rendering import imported, submit

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    run = story.launch()
    story.submit(run, [played(f"g{number}", [0.5, 1.0]) for number in range(8)], actor="api:t")
    return run


@pytest.fixture
def version(run: Run) -> DatasetVersion:
    return make(run)


def ask(version: DatasetVersion, form: str = "sft", file_format: str = FileFormat.JSONL) -> Export:
    return exports.request(version, form=form, file_format=file_format, user=None, actor="user:cy")


def fresh(export: Export) -> Export:
    return Export.objects.get(pk=export.pk)


def test_a_job_is_written_with_its_progress_and_its_files_are_the_owners_alone(version: DatasetVersion) -> None:
    export = ask(version)
    assert exports.are_waiting()
    assert exports.write_all("w") == 1
    export = fresh(export)
    assert (export.state, export.members_done, export.row_count, export.share_done) == ("done", 16, 16, 1.0)
    assert export.manifest is not None
    assert set(export.manifest["files"]) == {"train.jsonl", "README.md"}
    path = exports.file_of(export, "train.jsonl")
    assert path.read_bytes().count(b"\n") == 16
    assert stat.S_IMODE(path.parent.stat().st_mode) & 0o077 == 0
    events = Event.objects.filter(object_kind="export", object_id=export.pk).order_by("id")
    assert [(event.to_state, event.actor) for event in events] == [
        ("queued", "user:cy"),
        ("writing", "worker:w"),
        ("done", "worker:w"),
    ]
    assert not exports.are_waiting()


def test_the_same_version_is_the_same_files_after_more_was_said(run: Run, version: DatasetVersion) -> None:
    first = ask(version, file_format="parquet")
    exports.write_all("w")
    for number in range(8):
        say(f"g{number}", "reject")
    second = ask(version, file_format="parquet")
    exports.write_all("w")
    hashes = [fresh(each).manifest["files"]["train.parquet"] for each in (first, second)]  # type: ignore[index]
    assert hashes[0] == hashes[1]


def test_another_worker_goes_on_where_one_died_and_the_late_one_changes_nothing(version: DatasetVersion) -> None:
    export = ask(version)

    class Died(BaseException):
        pass

    def die(progress: files.ExportProgress) -> None:
        if progress.members:
            raise Died

    with patch.multiple(rendering, PAGE_MEMBERS=3), patch.multiple(files, CHUNK_BYTES=600):
        first = exports.take("one")
        assert first is not None
        with pytest.raises(Died), patch.object(exports.files, "write_directory", _until(die)):
            exports.write(first, "one")
        assert exports.take("two") is None, "its lease is not over"
        Export.objects.update(expires_at=Now())
        second = exports.take("two")
        assert second is not None
        assert second.epoch == first.epoch + 1
        with pytest.raises(LeaseLost):
            exports.write(first, "one")
        exports.write(second, "two")
    assert fresh(export).state == ExportState.DONE
    with pytest.raises(LeaseLost):
        exports.write(first, "one")
    assert fresh(export).state == ExportState.DONE


def _until(told):  # type: ignore[no-untyped-def]
    write = files.write_directory

    def stubbed(*args, **kwargs):  # type: ignore[no-untyped-def]
        return write(*args, **(kwargs | {"told": told}))

    return stubbed


def test_a_cancelled_one_stops_at_the_next_chunk_and_leaves_nothing(version: DatasetVersion) -> None:
    export = ask(version)
    taken = exports.take("w")
    assert taken is not None
    exports.cancel(fresh(export), actor="user:cy")
    with pytest.raises(LeaseLost):
        exports.write(taken, "w")
    exports.sweep()
    assert not exports.directory(export).exists()
    with pytest.raises(StateConflict):
        exports.cancel(fresh(export), actor="user:cy")
    with pytest.raises(StateConflict, match="cancelled"):
        exports.file_of(fresh(export), "train.jsonl")


def test_files_are_removed_by_hand_or_when_they_are_old(version: DatasetVersion) -> None:
    first, second = ask(version), ask(version)
    exports.write_all("w")
    exports.remove(fresh(first), actor="user:cy")
    assert not exports.directory(first).exists()
    exports.sweep()
    assert exports.directory(second).exists()
    with patch.object(exports, "KEEP", exports.KEEP * 0):
        exports.sweep()
    assert not exports.directory(second).exists()
    assert {fresh(each).state for each in (first, second)} == {ExportState.DELETED}


def test_who_removes_old_files_bears_that_somebody_removed_some_meanwhile(version: DatasetVersion) -> None:
    first, second = ask(version), ask(version)
    exports.write_all("w")

    def remove_meanwhile(*_removed: object) -> None:
        for each in (first, second):
            with suppress(StateConflict):
                transitions.move(fresh(each), to=ExportState.DELETED, actor="user:cy")

    with (
        patch.object(exports, "KEEP", exports.KEEP * 0),
        patch.object(exports.disk, "remove_directory", side_effect=remove_meanwhile),
    ):
        exports.sweep()
    assert {fresh(each).state for each in (first, second)} == {ExportState.DELETED}
    assert not any(exports.directory(each).exists() for each in (first, second))


def test_what_no_table_holds_fails_with_why(run: Run) -> None:
    submit(run, story.rollout(1.0, tokens=5), story.rollout(0.0, tokens=3))
    export = ask(make(run, form="pairs"), "dpo", "parquet")
    exports.write_all("w")
    assert fresh(export).state == ExportState.FAILED
    assert "group x has tokens and no messages" in fresh(export).state_reason
    told = [{"role": "user", "content": "what is it?"}, {"role": "assistant", "content": "a"}]
    shown = [{"role": "user", "content": [{"type": "image_url"}]}]
    export = ask(imported(run, [{"messages": told, "original": shown}]), "sft", "parquet")
    exports.write_all("w")
    assert "a line of a file has content with parts that are not text" in fresh(export).state_reason


def test_an_export_that_nobody_can_write_ends(version: DatasetVersion) -> None:
    export = ask(version)
    with patch.object(files, "write_directory", side_effect=TypeError("never thought of")):
        exports.write_all("w")
    assert (fresh(export).state, fresh(export).state_reason) == (ExportState.FAILED, "TypeError: never thought of")
    assert not exports.are_waiting()


def test_what_cannot_be_is_refused_before_it_waits(version: DatasetVersion) -> None:
    for fields in ({"form": "dpo"}, {"form": "rlhf"}, {"form": "sft", "file_format": "csv"}):
        with pytest.raises(Invalid):
            ask(version, **fields)
    with patch.object(exports, "MOST_OPEN", 1):
        ask(version)
        with pytest.raises(Conflict, match="not done yet"):
            ask(version)
    exports.write_all("w")
    with pytest.raises(NotFound):
        exports.file_of(Export.objects.get(), "../../secret_key")
