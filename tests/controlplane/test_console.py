"""The log of `rollyard up` when its disk is full: silence, and a note afterwards. And who is shown the link."""

import io
import json
import sys
from pathlib import Path

import pytest

from controlplane.up.console import Console

FULL = Path("/dev/full")
LINK, HOW = "http://here/login/link/x", "rollyard login-link"


class Output(io.StringIO):
    """Of a terminal or of a file."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.skipif(not FULL.exists(), reason="NOT TESTED: there is no device that is always full")
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


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("terminal", [False, True])
def test_the_link_is_shown_on_a_terminal_or_to_a_program_that_asked_and_kept_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool, as_json: bool
) -> None:
    out, err = Output(terminal=terminal), Output(terminal=terminal)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    console = Console(tmp_path / "up.log", quiet=False, as_json=as_json)
    console.announce(LINK, elsewhere=HOW)
    console.event("url", login_url=LINK)
    said = err.getvalue() if as_json else out.getvalue()
    assert (LINK in said, HOW in said) == (terminal, not terminal)
    assert not as_json or json.loads(out.getvalue())["login_url"] == LINK
    assert LINK not in (tmp_path / "up.log").read_text()
