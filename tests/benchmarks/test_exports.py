"""The benchmark of exports kills them, and says so where they end by themselves."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import exports


def test_an_export_that_breaks_ends_the_benchmark(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError, match="status 3"):
        exports.kill([sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "killed.jsonl")


def test_an_export_that_was_done_before_its_kill_is_no_kill(tmp_path: Path) -> None:
    assert exports.kill([sys.executable, "-c", ""], tmp_path / "killed.jsonl") == 0
