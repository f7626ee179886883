"""How far a long command is: a bar for people, lines for files, and file names as they are."""

import pytest

from controlplane.cli.progress import progress


def test_a_terminal_gets_a_bar_with_lines_above_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # which says that it is a terminal
    monkeypatch.setenv("TERM", "xterm")
    with progress(4) as meter:
        meter.update(2, "2 groups, [bold].jsonl")
        meter.say("skipped [red].jsonl:7")
    seen = capfd.readouterr()
    assert "50%" in seen.err
    assert "2 groups, [bold].jsonl" in seen.err
    assert "skipped [red].jsonl:7" in seen.err
    assert seen.out == ""


def test_anything_else_gets_plain_lines_now_and_then(capfd: pytest.CaptureFixture[str]) -> None:
    with progress(0) as meter:
        for done in range(1000):
            meter.update(done, "much")
        meter.say("skipped [red].jsonl:7 " + "x" * 200)
    assert capfd.readouterr().err.endswith("skipped [red].jsonl:7 " + "x" * 200 + "\n")


def test_a_line_says_the_share_when_the_whole_is_known(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("controlplane.cli.progress.LINE_EVERY_S", 0.0)
    with progress(4) as meter:
        meter.update(1, "1 group")
    assert capfd.readouterr().err == "25%  1 group\n"
