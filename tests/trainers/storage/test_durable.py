"""A directory is complete or absent, wherever the writer is killed."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainers.errors import CheckpointCorrupt
from trainers.storage import durable
from trainers.storage.durable import (
    HashedFile,
    find_directory,
    step_directory,
    sweep_partials,
    verify_directory,
    write_directory,
)

CRASH_POINTS = ["fsync", "rename", "mkdir", "open", "unlink", "rmdir"]
KILLED = 77


def fill(directory: Path) -> None:
    (directory / "a.bin").write_bytes(b"a" * 10_000)
    (directory / "b.json").write_text("{}")


def save(parent: Path, step: int = 4, epoch: int = 1) -> durable.CompleteDirectory:
    return write_directory(parent, step, fill, epoch=epoch, run="r")


def killed_at_call(number: int, work: Callable[[], object]) -> bool:
    """Run `work` in a forked child that dies, with no clean-up at all, before its `number`-th system call of interest.

    Returns False when `work` was done before that many calls.
    """
    child = os.fork()
    if child == 0:
        calls = 0

        def dying(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls > number:
                    os._exit(KILLED)
                return original(*args, **kwargs)

            return call

        for name in CRASH_POINTS:
            setattr(os, name, dying(getattr(os, name)))
        try:
            work()
        except BaseException:  # noqa: BLE001 - a forked child must not return into pytest
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, KILLED)
    return status == KILLED


def test_a_complete_directory_verifies_and_says_what_it_is(tmp_path: Path) -> None:
    saved = save(tmp_path)
    assert saved.path == tmp_path / "step_4"
    assert saved.size_bytes == 10_002
    assert verify_directory(saved.path, saved.manifest_sha256) == saved == find_directory(tmp_path, 4)


def test_a_kill_at_any_moment_of_a_save_leaves_a_complete_directory_or_none(tmp_path: Path) -> None:
    outcomes = set()
    for number in range(100):
        parent = tmp_path / str(number)
        killed = killed_at_call(number, lambda parent=parent: save(parent))  # type: ignore[misc]
        there = step_directory(parent, 4).exists()
        assert not there or find_directory(parent, 4)
        outcomes.add((killed, there))
        assert save(parent, epoch=2).path.exists(), "the next attempt is not in the way of what the dead one left"
        if not killed:
            break
    assert outcomes == {(True, False), (True, True), (False, True)}


@pytest.mark.parametrize(
    "damage",
    [
        lambda directory: (directory / "a.bin").write_bytes(b"b" * 10_000),
        lambda directory: (directory / "a.bin").write_bytes(b"a"),
        lambda directory: (directory / "a.bin").unlink(),
        lambda directory: (directory / "manifest.json").write_text("{"),
        lambda directory: (directory / "manifest.json").write_text("[]"),
        lambda directory: (directory / "manifest.json").write_bytes(b'{"files": ' + b"[" * 200_000),
        lambda directory: (directory / "manifest.json").unlink(),
    ],
)
def test_damage_is_found_and_a_damaged_directory_is_replaced(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    saved = save(tmp_path)
    damage(saved.path)
    with pytest.raises(CheckpointCorrupt, match="step_4"):
        verify_directory(saved.path)
    assert find_directory(tmp_path, 4) is None
    assert save(tmp_path) == saved


def test_another_manifest_than_the_announced_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointCorrupt, match="expected 00"):
        verify_directory(save(tmp_path).path, "00")


@pytest.mark.parametrize("name", ["/etc/hostname", "../secret", "..", ".", "", "deep/file", 7])
def test_a_manifest_names_files_of_its_directory_and_no_others(tmp_path: Path, name: Any) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"files": [{"name": name, "size_bytes": 1, "sha256": "a"}]}))
    with pytest.raises(CheckpointCorrupt, match="is no manifest"):
        verify_directory(tmp_path)


def test_a_hole_and_a_second_name_give_no_time_to_be_read_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "_LEAST_S", 0.0)
    monkeypatch.setattr(durable, "_SLOWEST_BYTES_PER_S", 1e-3)
    saved = save(tmp_path)
    assert verify_directory(saved.path) == saved, "what is on the disk has all the time it needs"
    (saved.path / "a.bin").write_bytes(b"")
    os.truncate(saved.path / "a.bin", 2**40)
    files = [{"name": "a.bin", "size_bytes": 2**40, "sha256": "0"}] * 100_000
    (saved.path / "manifest.json").write_text(json.dumps({"files": files}))
    with pytest.raises(CheckpointCorrupt, match="longer than what of it is on the disk"):
        verify_directory(saved.path)


def test_a_complete_directory_is_never_overwritten(tmp_path: Path) -> None:
    first = save(tmp_path)
    second = write_directory(tmp_path, 4, lambda path: (path / "c").write_text("other"), epoch=2, run="r")  # type: ignore[arg-type,return-value]
    assert second == first
    assert [path.name for path in tmp_path.iterdir()] == ["step_4"]


def test_what_dead_trainers_left_is_swept_and_a_live_writer_left_alone(tmp_path: Path) -> None:
    for step in (2, 9, 10):
        save(tmp_path, step)
    (tmp_path / "step_11.partial-1").mkdir()
    (tmp_path / "step_11.partial-2").mkdir()
    sweep_partials(tmp_path, epoch=2)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["step_10", "step_11.partial-2", "step_2", "step_9"]


def test_what_the_control_plane_deletes_at_the_same_time_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_in = tmp_path / "step_3.deleting"
    fill_in.mkdir()
    fill(fill_in)
    unlink = os.unlink

    def unlink_after_another(*args: Any, **kwargs: Any) -> None:
        unlink(*args, **kwargs)
        unlink(*args, **kwargs)

    monkeypatch.setattr(os, "unlink", unlink_after_another)
    sweep_partials(tmp_path, epoch=1)
    assert not list(tmp_path.iterdir())


def test_where_nothing_was_written_nothing_is_swept(tmp_path: Path) -> None:
    sweep_partials(tmp_path / "missing", epoch=1)


def test_a_file_is_hashed_as_it_is_written_and_synced_before_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr(durable, "_SYNC_BYTES", 2_000)
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    pieces = [bytes([number]) * 700 for number in range(20)]
    with HashedFile(tmp_path / "file") as file:
        for piece in pieces:
            file.write(piece)
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)
    assert file.sha256 == hashlib.sha256(b"".join(pieces)).hexdigest()
    assert synced == [2_100, 4_200, 6_300, 8_400, 10_500, 12_600, 14_000]


def test_a_full_disk_is_told_by_the_file_that_it_ends() -> None:
    file = HashedFile(Path("/dev/full"))
    with pytest.raises(OSError, match="No space left"), file:
        file.write(b"a" * 2**20)
