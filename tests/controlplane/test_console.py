"""The log of `rollyard up` when its disk is full: silence, and a note afterwards."""

from pathlib import Path

import pytest

from controlplane.up.console import Console

FULL = Path("/dev/full")
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="NOT TESTED: there is no device that is always full")


def test_what_cannot_be_written_is_dropped_without_a_word_and_counted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "up.log"
    log.symlink_to(FULL)
    console = Console(log, quiet=True, as_json=False)
    for number in range(3):
        console.line("web", f"line {number}")
    assert capfd.readouterr() == ("", "")
    log.unlink()  # now there is space
    console.line("web", "there is space")
    console.line("web", "and there still is")
    lines = [line.split(maxsplit=2)[2] for line in log.read_text().splitlines()]
    assert lines[0].startswith("rollyard   3 lines could not be written")
    assert lines[1:] == ["web        there is space", "web        and there still is"]
    assert capfd.readouterr() == ("", "")
