"""What a process that was killed leaves in the directory of temporary files."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from workers.directories import OwnDirectory

STAY = """
import signal, sys
from pathlib import Path
from workers.directories import OwnDirectory
place = OwnDirectory(Path(sys.argv[1]))
(place.path / "model").write_bytes(b"weights")
print("made", flush=True)
signal.pause()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def held(name: str) -> set[str]:
    return {name, f"{name}.held"}


def abandon(path: Path, machine: bytes | None = None) -> Path:
    """Let it be left by a process that is gone; `machine`: of another one."""
    gone = OwnDirectory(path)
    assert gone._lock is not None
    if machine is not None:
        os.pwrite(gone._lock, machine, 0)
    os.close(gone._lock)
    return path


def test_what_a_killed_process_had_is_taken_away_by_the_next_and_nothing_else(tmp_path: Path) -> None:
    others = {"rollyard-of-nobody-we-know", "other"}
    for other in others:
        (tmp_path / other).mkdir()
    argv = [sys.executable, "-c", STAY, str(tmp_path / "rollyard-killed")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "made\n"
            with OwnDirectory.temporary("rollyard-first-") as first:
                assert names(tmp_path) == {*held("rollyard-killed"), *held(first.path.name), *others}, "it lives"
        finally:
            process.kill()
    with OwnDirectory.temporary("rollyard-second-") as second:
        assert names(tmp_path) == {*held(second.path.name), *others}
    assert names(tmp_path) == others


def test_no_depth_of_what_a_killed_process_had_keeps_the_next_from_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(abandon(tmp_path / "rollyard-left"))
    for _ in range(2 * sys.getrecursionlimit()):
        os.mkdir("d")
        os.chdir("d")
    os.chmod(".", 0)
    with OwnDirectory.temporary("rollyard-") as own:
        assert names(tmp_path) == held(own.path.name)


def test_directories_of_one_process_stay_beside_each_other(tmp_path: Path) -> None:
    with OwnDirectory.temporary("rollyard-") as first, OwnDirectory.temporary("rollyard-", mode=0o755) as second:
        assert names(tmp_path) == {*held(first.path.name), *held(second.path.name)}
        assert (first.path.stat().st_mode & 0o777, second.path.stat().st_mode & 0o777) == (0o700, 0o755)


def test_a_directory_that_somebody_made_before_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "rollyard-taken").mkdir()
    with pytest.raises(FileExistsError):
        OwnDirectory(tmp_path / "rollyard-taken")
    assert names(tmp_path) == {"rollyard-taken"}


def test_a_link_to_a_directory_that_nobody_has_is_let_be(tmp_path: Path) -> None:
    left = abandon(tmp_path / "rollyard-left")
    left.rename(tmp_path / "precious")
    left.symlink_to(tmp_path / "precious")
    with OwnDirectory.temporary("rollyard-"):
        assert left.is_symlink()


def test_what_nodes_that_share_the_place_left_is_theirs(tmp_path: Path) -> None:
    theirs, ours = abandon(tmp_path / "rollyard-theirs", b"another machine"), abandon(tmp_path / "rollyard-ours")
    with OwnDirectory.temporary("rollyard-"):
        assert (theirs.exists(), ours.exists()) == (True, False)


@pytest.mark.skipif(os.geteuid() != 0, reason="ROOT: makes a file that belongs to somebody else")
def test_nobody_else_can_say_that_a_directory_of_ours_is_abandoned(tmp_path: Path) -> None:
    ours = tmp_path / "rollyard-postgres"
    ours.mkdir()
    theirs = abandon(tmp_path / "rollyard-left").with_name("rollyard-left.held").rename(tmp_path / f"{ours.name}.held")
    theirs.chmod(0o666)
    os.chown(theirs, 65534, 65534)
    with OwnDirectory.temporary("rollyard-"):
        assert ours.is_dir()
