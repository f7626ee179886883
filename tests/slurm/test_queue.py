"""How SLURM's programs are asked, and what they say is read: stand-ins for them, in a directory."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from workers.slurm.queue import Job, Queue

TOKEN = "0b1c2d3e-0000-4000-8000-00000000000a"
Program = Callable[[str, str], None]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Makes one of these lines of a shell."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def write(name: str, lines: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / name).chmod(0o755)

    return write


def test_a_job_of_somebody_whose_name_is_no_text_hides_none_of_ours(program: Program) -> None:
    ours = f"7|RUNNING|None|rollyard-{TOKEN}|n1|N/A||"
    program("squeue", f"printf '6|RUNNING|None|caf\\351|n1|N/A||\\n{ours}\\n'")
    assert Queue().jobs() == {TOKEN: Job("7", "RUNNING", "None", "n1")}
