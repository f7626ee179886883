"""The runner, here without a sandbox: programs end as Python itself would end them."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from environments.rewards.judged_code import runner


def ran(source: str, **asked: Any) -> list[Any]:
    """What it answers about code of ours."""
    given = {"code": textwrap.dedent(source), "calls": [], "inputs": [], "most_s": 20, "most_bytes": 1_000}
    given |= {"imported": "", "holder": ""} | asked
    command = [sys.executable, "-I", "-S", runner.__file__]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=True, timeout=60)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "source",
    [
        """
        import threading
        def main():
            threading.main_thread().join()
            print(input().upper())
        threading.Thread(target=main).start()
        """,
        """
        import atexit
        lines = []
        atexit.register(lambda: print(*lines))
        lines.append(input().upper())
        raise SystemExit
        """,
    ],
    ids=["in a thread", "at its exit"],
)
def test_what_a_program_prints_late_is_its_output_too(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where it keeps what a program reads
    assert ran(source, inputs=["ab\n"]) == [[0, "output", "AB\n"]]
