"""How many processors a process may use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from environments import processors

AT_ONCE = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from environments.sandbox.engine import AT_ONCE
print(AT_ONCE)
"""


def test_a_process_that_is_bound_to_one_has_as_many_sandboxes_as_one_attends() -> None:
    told = subprocess.run([sys.executable, "-c", AT_ONCE], check=True, capture_output=True, text=True)
    assert int(told.stdout) == 4


@pytest.mark.parametrize(("content", "most"), [("50000 100000", 1), ("max 100000", 256), ("150000 100000", 2)])
def test_a_container_and_a_job_have_what_they_are_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str, most: int
) -> None:
    monkeypatch.delenv("SLURM_CPUS_ON_NODE", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(256))
    monkeypatch.setattr(processors, "_QUOTA", tmp_path / "cpu.max")
    assert processors.count() == 256
    (tmp_path / "cpu.max").write_text(content)
    assert processors.count() == most
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "8")
    assert processors.count() == min(8, most)
