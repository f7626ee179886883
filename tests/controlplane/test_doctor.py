"""What `rollyard doctor` shows to a person; what it finds: tests/controlplane/test_cli.py."""

import pytest

from controlplane.cli.doctor import WARN, Row, show


def test_what_is_to_be_typed_is_shown_as_it_is_typed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    show([Row("trainer", WARN, "[/x] of [workers.players]", "pip install 'rollyard[train]'")])
    shown = capsys.readouterr().out
    assert "[/x] of [workers.players]" in shown
    assert "pip install 'rollyard[train]'" in shown
