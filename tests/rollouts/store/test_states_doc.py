"""docs/states.md is what the state machines say."""

from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from rollouts.management.commands import states_doc
from rollouts.services.transitions import TRANSITIONS


def test_the_document_of_states_is_current() -> None:
    call_command("states_doc", "--check")


def test_a_document_that_is_out_of_date_is_named_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "states.md"
    monkeypatch.setattr(states_doc, "PATH", path)
    with pytest.raises(CommandError, match="run `python manage"):
        call_command("states_doc", "--check")
    assert not path.exists()
    call_command("states_doc")
    call_command("states_doc", "--check")
    path.write_text("old")
    with pytest.raises(CommandError):
        call_command("states_doc", "--check")


def test_every_state_of_every_machine_has_its_row_and_its_arrows() -> None:
    text = states_doc.document()
    assert text.count("stateDiagram-v2") == len(TRANSITIONS)
    for table in TRANSITIONS.values():
        for state in type(next(iter(table))):
            assert f"| `{state}` | {state.label} | " in text
            assert f"    {state} --> " in text or f"--> {state}\n" in text
