"""What a driver that was killed leaves in the directory of temporary files."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from workers import sockets


def test_the_sockets_of_a_process_that_was_killed_are_taken_away_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = tmp_path / f"rollyard-driver-{dead.pid}-abc"
    left.mkdir()
    (left / "gateway.sock").touch()
    others = [tmp_path / "rollyard-driver-notes", tmp_path / f"rollyard-tool-{dead.pid}-abc"]
    for other in others:
        other.mkdir()
    with sockets.make_directory() as first, sockets.make_directory() as second:
        assert {str(path) for path in tmp_path.iterdir()} == {first, second, *map(str, others)}
    assert sorted(tmp_path.iterdir()) == sorted(others)
