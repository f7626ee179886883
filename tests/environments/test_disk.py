"""A file is complete or absent, whoever writes it and wherever it is stopped."""

import os
import uuid
from pathlib import Path

import pytest

from environments import disk


def test_a_file_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "report"
    with disk.writing(path, mode=0o600) as file:
        file.write(b"half")
        assert not path.exists()
        file.write(b" and half")
    assert path.read_bytes() == b"half and half"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_while_writing_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "report"
    disk.write_file(path, b"old")
    with pytest.raises(TypeError), disk.writing(path) as file:
        file.write("no bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_that_is_killed_leaves_only_a_partial_file(tmp_path: Path) -> None:
    path = tmp_path / "report"
    disk.write_file(path, b"old")
    if (child := os.fork()) == 0:
        with disk.writing(path) as file:
            file.write(b"new")
            os._exit(0)
    os.waitpid(child, 0)
    assert path.read_bytes() == b"old"
    [left] = set(tmp_path.iterdir()) - {path}
    assert left.suffix == disk.PARTIAL


def test_of_two_writers_that_replace_nothing_the_first_wins(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with disk.writing(path, replace=False) as slow:
        slow.write(b"slow")
        path.write_bytes(b"fast")
    disk.write_file(path, b"late", replace=False)
    assert path.read_bytes() == b"fast"
    assert list(tmp_path.iterdir()) == [path]


def test_of_two_writers_with_one_number_on_two_machines_neither_takes_what_the_other_writes(tmp_path: Path) -> None:
    path = tmp_path / "fault"
    with disk.writing(path) as slow:
        slow.write(b"slow")
        disk.write_file(path, b"fast")
        assert path.read_bytes() == b"fast"
    assert path.read_bytes() == b"slow"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_in_the_place_of_the_new_file_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guessed = uuid.uuid4()
    monkeypatch.setattr(uuid, "uuid4", lambda: guessed)
    bystander, path = tmp_path / "bystander", tmp_path / "file"
    bystander.write_text("as it was")
    path.with_name(f"file.{guessed.hex}{disk.PARTIAL}").symlink_to(bystander)
    with pytest.raises(FileExistsError):
        disk.write_file(path, b"content")
    assert bystander.read_text() == "as it was"
    assert not path.exists()


def test_a_directory_changes_its_name_before_it_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doomed = tmp_path / "step_3"
    disk.make_directory(doomed / "inside")
    monkeypatch.setattr("shutil.rmtree", lambda path, **_: None)
    disk.remove_directory(doomed)
    assert [path.name for path in tmp_path.iterdir()] == ["step_3.deleting"]
    monkeypatch.undo()
    disk.remove_directory(tmp_path / "step_3.deleting")
    disk.remove_directory(doomed)
    assert list(tmp_path.iterdir()) == []


def test_only_a_regular_file_is_opened_for_others_and_a_link_only_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "zero").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "zero", "pipe", "."):
        with pytest.raises(OSError, match=f"is no regular file: '{tmp_path / name}'"):
            disk.open_regular(tmp_path / name)
    with disk.open_regular(tmp_path / "link", follow_links=True) as file:
        assert file.read() == b"content"
    with pytest.raises(OSError, match="is no regular file"):
        disk.open_regular(tmp_path / "zero", follow_links=True)


def test_a_directory_that_is_open_stays_the_same_when_another_takes_its_name(tmp_path: Path) -> None:
    place = tmp_path / "place"
    for directory, content in ((place, b"ours"), (tmp_path / "other", b"theirs")):
        directory.mkdir()
        (directory / "file").write_bytes(content)
    with disk.ForeignDirectory(place, closed=[tmp_path], most=10) as opened:
        place.rename(tmp_path / "before")
        place.symlink_to(tmp_path / "other")
        assert opened.read("file", 10) == b"ours"
    with pytest.raises(OSError, match="is a link"):
        disk.ForeignDirectory(place, closed=[tmp_path], most=10)
